// Products of few rows of activations, on matrix instructions: as fast as memory gives the weights, each of
// which is read once.  Those in blocks become numbers of 16 bits in registers, where the instructions want
// them; sums are in f32.
#pragma once

#include "propolis_blocks.h"
#include "propolis_matrix.h"

#if PROPOLIS_FRAGMENTS

template <class T>
PROPOLIS_FN Pack<u16, RUN> rounded_run(const f32 (&values)[RUN]) {
    Pack<u16, RUN> made;
#pragma unroll
    for (int e = 0; e < RUN; ++e) made.at[e] = narrow<T>(values[e]).bits;
    return made;
}

// As words: of halves of words AMD's compiler loads the first ones twice.
template <class T>
PROPOLIS_FN Pack<u16, RUN> run_at(const T* at) {
    return bits_as<Pack<u16, RUN>>(load_pack<RUN / 2>((const u32*)at));
}

// The warps' sums of TALL fragments of rows of weights by WIDE of `x`, added up by way of shared memory, times `scale`;
// and `bias`, if there is one.
template <int TALL, int WIDE, class Out>
PROPOLIS_FN void add_warps(Out* out, const Out* bias, i64 bias_step, f32 scale, const Sums (&sums)[TALL][WIDE],
                           i64 first, i64 m, i64 n) {
    constexpr int ROWS = TALL * FRAGMENT;
    __shared__ f32 shared[BLOCK / PROPOLIS_WARP][FRAGMENT][ROWS + 1];
#pragma unroll
    for (int c = 0; c < WIDE; ++c) {
        if (c > 0) __syncthreads();
#pragma unroll
        for (int f = 0; f < TALL; ++f) {
#pragma unroll
            for (int i = 0; i < Sums::COUNT; ++i) {
                shared[warp_of_block()][Sums::column(i)][f * FRAGMENT + Sums::row(i)] = sums[f][c].at[i];
            }
        }
        __syncthreads();
        for (int i = (int)thread_x(); i < ROWS * FRAGMENT; i += BLOCK) {
            const int within = i % ROWS, column = i / ROWS;
            f32 sum = 0;
#pragma unroll
            for (int k = 0; k < BLOCK / PROPOLIS_WARP; ++k) sum += shared[k][column][within];
            const i64 row = first + within, to = c * FRAGMENT + column;
            if (row >= n || to >= m) continue;
            sum *= scale;
            if (bias) sum += wide(bias[row * bias_step]);
            out[to * n + row] = narrow<Out>(sum);
        }
    }
}

// Where this thread's runs of rows from `first` on lie; beyond the last, that once more.
template <class T, int FRAGMENTS>
PROPOLIS_FN void rows_held(const T* (&at)[FRAGMENTS][RUNS_HELD], const T* from, i64 apart, i64 first, i64 rows) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
#pragma unroll
        for (int i = 0; i < RUNS_HELD; ++i) {
            const i64 row = first + f * FRAGMENT + Held<T>::row(i);
            at[f][i] = from + (row < rows ? row : rows - 1) * apart;
        }
    }
}

// A block has TALL fragments of rows of weights, and up to 16 WIDE rows of `x`; its warps share the depth.
// Where `few`, there are no more than 8 of them.  Rows of `x` begin at multiples of 16 bytes.
template <class Format, int TALL, int WIDE, bool few, class T>
PROPOLIS_FN void product_of_few(f32* out, const T* x, const u8* w, i64 m, i64 n, i64 depth, i64 x_row,
                                i64 row_bytes) {
    constexpr int WARPS = BLOCK / PROPOLIS_WARP;
    constexpr int CHUNK = Format::SIZE;  // of a row, for one warp at a time
    constexpr int AHEAD = WIDE * TALL == 1 ? 4 : 2;  // spans of which loads are on their way
    [[maybe_unused]] constexpr int CHUNKS_AHEAD = AHEAD * SPAN > CHUNK ? AHEAD * SPAN / CHUNK : 1;
    constexpr int ROWS = TALL * FRAGMENT;
    const int warp = warp_of_block();
    const i64 first = block_x() * ROWS;
    const u8* weights[TALL][RUNS_HELD];
    const T* activations[WIDE][RUNS_HELD];
    rows_held(weights, w, row_bytes, first, n);
    rows_held(activations, x, x_row, 0, m);
    Sums sums[TALL][WIDE] = {};
#if defined(PROPOLIS_MMA)  // AMD's compiler repeats no matrix instructions of which it cannot tell how many
#pragma unroll CHUNKS_AHEAD
#endif
    for (i32 chunk = warp; chunk < (i32)(depth / CHUNK); chunk += WARPS) {
#pragma unroll AHEAD
        for (int at = 0; at < CHUNK; at += SPAN) {
            Held<T> left[TALL];
#pragma unroll
            for (int f = 0; f < TALL; ++f) {
#pragma unroll
                for (int i = 0; i < RUNS_HELD; ++i) {
                    Weights<f32> own;
                    f32 values[RUN];
                    Format::load(weights[f][i] + (i64)chunk * Format::BYTES,
                                 (at + Held<T>::depth(i)) / RUN, own);
                    dequantized<Format>(own, values);
                    left[f].runs[i] = rounded_run<T>(values);
                }
            }
#pragma unroll
            for (int c = 0; c < WIDE; ++c) {
                Held<T> right;
#pragma unroll
                for (int i = 0; i < RUNS_HELD; ++i) {
                    right.runs[i] = run_at(activations[c][i] + (i64)chunk * CHUNK + at + Held<T>::depth(i));
                }
#pragma unroll
                for (int f = 0; f < TALL; ++f) sums[f][c].template add<few>(left[f], right);
            }
        }
    }
    add_warps(out, (const f32*)nullptr, 0, 1.0f, sums, first, m, n);
}

// Numbers as instructions take them: as they are, if these have 16 bits.
template <class S>
struct Taken {
    typedef S T;
    static constexpr f32 SCALE = 1;  // of a product
};
// Of 8 bits, f16 has all: four of them are those of even places, then those of odd ones.  A product
// of two of E4M3 is taken 65536 times too small, for want of a shift of exponents; `seen` has its
// highest bits set where one was NaN, which is told by poison() at the end.
template <>
struct Taken<f8e4m3> {
    typedef f16 T;
    static constexpr f32 SCALE = 65536;
    PROPOLIS_FN void halves(u32 four, u32& even, u32& odd, u32& seen) {
        even = ((four << 7) & 0x3f803f80u) | ((four << 8) & 0x80008000u);
        odd = ((four >> 1) & 0x3f803f80u) | (four & 0x80008000u);
        seen |= (four & 0x7f7f7f7fu) + 0x01010101u;
    }
};
template <>
struct Taken<f8e5m2> {
    typedef f16 T;
    static constexpr f32 SCALE = 1;
    PROPOLIS_FN void halves(u32 four, u32& even, u32& odd, u32&) {
        even = (four << 8) & 0xff00ff00u;
        odd = four & 0xff00ff00u;
    }
};
template <class S>
PROPOLIS_FN Pack<u16, RUN> run_of_bytes(u32 first, u32 second, u32& seen) {
    Pack<u32, 4> made;
    Taken<S>::halves(first, made.at[0], made.at[1], seen);
    Taken<S>::halves(second, made.at[2], made.at[3], seen);
    return bits_as<Pack<u16, RUN>>(made);
}

// Neighbouring spans of 16 rows.  Of bytes, threads load those of two spans at once, side by side.
template <int SPANS, class S, class T = typename Taken<S>::T>
PROPOLIS_FN void bring_spans(Held<T> (&to)[SPANS], const S* const (&from)[RUNS_HELD], i32 span,
                             [[maybe_unused]] u32 (&seen)[RUNS_HELD]) {
#pragma unroll
    for (int i = 0; i < RUNS_HELD; ++i) {
        const S* at = from[i] + (i64)span * SPAN;
        if constexpr (sizeof(S) == 2) {
#pragma unroll
            for (int s = 0; s < SPANS; ++s) to[s].runs[i] = run_at(at + s * SPAN + Held<T>::depth(i));
        } else if constexpr (SPANS == 1) {
            const Pack<u32, 2> words = load_pack<2>((const u32*)(at + Held<T>::depth(i)));
            to[0].runs[i] = run_of_bytes<S>(words.at[0], words.at[1], seen[i]);
        } else {
#pragma unroll
            for (int s = 0; s < SPANS; s += 2) {
                const Pack<u32, 4> words = load_pack<4>((const u32*)(at + s * SPAN + 2 * Held<T>::depth(i)));
                to[s].runs[i] = run_of_bytes<S>(words.at[0], words.at[1], seen[i]);
                to[s + 1].runs[i] = run_of_bytes<S>(words.at[2], words.at[3], seen[i]);
            }
        }
    }
}
template <bool few, int SPANS, int WIDE, class T>
PROPOLIS_FN void add_spans(Sums (&sums)[WIDE], const Held<T> (&left)[SPANS], const Held<T> (&right)[WIDE][SPANS]) {
#pragma unroll
    for (int s = 0; s < SPANS; ++s) {
#pragma unroll
        for (int c = 0; c < WIDE; ++c) sums[c].template add<few>(left[s], right[c][s]);
    }
}
// NaN for rows of which one was seen, and zeros for others: terms of sums.
template <class T>
PROPOLIS_FN void poison(Held<T>& to, const u32 (&seen)[RUNS_HELD]) {
#pragma unroll
    for (int i = 0; i < RUNS_HELD; ++i) {
#pragma unroll
        for (int e = 0; e < RUN; ++e) to.runs[i].at[e] = seen[i] & 0x80808080u ? 0x7fff : 0;
    }
}

// The same of plain weights, 16 rows to a block, whose warps take SPANS spans of them at once.  Of bytes there may be
// more rows of `x` than a block takes: neighbouring blocks take them.  Depth is a multiple of SPAN, and rows begin at
// multiples of 16 bytes.
template <int WIDE, bool few, class S>
PROPOLIS_FN void product_of_few_plain(S* out, const S* x, const S* w, const S* bias, i64 bias_step, i64 m, i64 n,
                                      i64 depth, i64 x_row, i64 w_row) {
    typedef typename Taken<S>::T T;
    constexpr int WARPS = BLOCK / PROPOLIS_WARP, SPANS = 4;
    i64 first = block_x() * FRAGMENT;
    if constexpr (sizeof(S) == 1) {
        const u32 parts = (u32)((m + WIDE * FRAGMENT - 1) / (WIDE * FRAGMENT)), block = (u32)block_x();
        const i64 done = (i64)(block % parts) * (WIDE * FRAGMENT);
        first = (i64)(block / parts) * FRAGMENT;
        out += done * n;
        x += done * x_row;
        m -= done;
    }
    const i32 all = (i32)(depth / SPAN), whole = all - all % SPANS;
    const S* weights[1][RUNS_HELD];
    const S* activations[WIDE][RUNS_HELD];
    rows_held(weights, w, w_row, first, n);
    rows_held(activations, x, x_row, 0, m);
    Sums sums[1][WIDE] = {};
    u32 seen[1 + WIDE][RUNS_HELD] = {};
    const auto take = [&](auto& left, auto& right, i32 span) {
        bring_spans(left, weights[0], span, seen[0]);
#pragma unroll
        for (int c = 0; c < WIDE; ++c) bring_spans(right[c], activations[c], span, seen[1 + c]);
        add_spans<few>(sums[0], left, right);
    };
#pragma unroll 1
    for (i32 span = warp_of_block() * SPANS; span < whole; span += WARPS * SPANS) {
        Held<T> left[SPANS], right[WIDE][SPANS];
        take(left, right, span);
    }
    // The rest is for warps that have had less.
#pragma unroll 1
    for (i32 span = whole + WARPS - 1 - warp_of_block(); span < all; span += WARPS) {
        Held<T> left[1], right[WIDE][1];
        take(left, right, span);
    }
    if constexpr (Taken<S>::SCALE != 1) {
        Held<T> left[1], right[WIDE][1];
        poison(left[0], seen[0]);
#pragma unroll
        for (int c = 0; c < WIDE; ++c) poison(right[c][0], seen[1 + c]);
        add_spans<few>(sums[0], left, right);
    }
    add_warps(out, bias, bias_step, Taken<S>::SCALE, sums, first, m, n);
}

#endif
