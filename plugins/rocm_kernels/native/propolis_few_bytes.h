// Products of up to 16 rows of activations with weights in blocks, in integers on matrix instructions.  Activations are
// rounded to 16 bits, 256 neighbours with a scale, and multiplied as two planes of signed bytes; weights come to shared
// memory as they are stored, 256 of a row at a time, by a warp for itself.
#pragma once

#include "propolis_blocks.h"
#include "propolis_copy.h"
#include "propolis_matrix_bytes.h"
#include "propolis_steps.h"

// Rounded activations, of ROWS rows, those beyond the last 0: for each group of 32, row, and quarter of both sixteens
// the upper bytes of these and the lower ones; and of each CHUNK and row the largest magnitude, which is LARGEST.
struct RoundedRows {
    static constexpr int GROUPS = CHUNK / PART, GROUP_WORDS = 2 * PART / 4;
    u32* words;
    f32* most;

    PROPOLIS_METHOD RoundedRows(u32* at, i64 chunks, int rows)
        : words(at), most((f32*)(at + chunks * GROUPS * rows * GROUP_WORDS)) {}
};

// A chunk of a row is for 32 threads.
PROPOLIS_FN void round_rows(u32* out, const f32* x, i64 m, i64 depth, i64 chunks, int rows) {
    constexpr int THREADS = CHUNK / RUN;
    const i64 item = (block_x() * (i64)BLOCK + thread_x()) / THREADS;
    const int lane = (int)thread_x() % THREADS, row = (int)(item % rows);
    const i64 chunk = item / rows;
    const RoundedRows to(out, chunks, rows);
    const i64 k = chunk * CHUNK + lane * RUN;
    f32 own[RUN] = {};
    if (row < m && k < depth) load_run(x + row * depth + k, own);
    f32 top = 0;
#pragma unroll
    for (int i = 0; i < RUN; ++i) top = larger_or_nan(top, math::fabs(own[i]));
#pragma unroll
    for (int mask = 1; mask < THREADS; mask *= 2) top = larger_or_nan(top, warp_shfl_xor(top, mask));
    Pack<u32, 2> upper, lower;
    rounded_bytes(own, top, upper, lower);
    if (chunk >= chunks) return;
    const i64 at = (chunk * RoundedRows::GROUPS + lane / 4) * rows + row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int four = lane % 4 * 2 + i;
        u32* place = to.words + at * RoundedRows::GROUP_WORDS + four % 4 * 4 + four / 4;
        place[0] = upper.at[i], place[2] = lower.at[i];
    }
    if (lane == 0) to.most[chunk * rows + row] = most_or_nan(top);
}

#if PROPOLIS_FRAGMENTS
constexpr int WARPS_OF_BLOCK = BLOCK / PROPOLIS_WARP;  // they share the depth
#if defined(PROPOLIS_MMA)
constexpr int SLOTS = 2;
#else
constexpr int SLOTS = 1;  // what comes next is in registers
#endif
// Of a chunk, that are computed without a loop: then where their bytes lie is known.
#if defined(PROPOLIS_AMD)
template <class Format>
constexpr int GROUPS_AT_ONCE = Format::SIZE == CHUNK ? 1 : 4;  // more take too many registers
#else
template <class Format>
constexpr int GROUPS_AT_ONCE = CHUNK / PART;
#endif

// Of formats of 256: whether a scale is that of sixteen, not of 32.
template <class Format>
constexpr bool SIXTEENS = false;
template <>
constexpr bool SIXTEENS<Q6_K> = true;
// And whether weights times their whole scales are signed bytes (1), or times these with the other sign (-1).
template <class Format>
constexpr int BY_BYTES = 0;
template <>
constexpr int BY_BYTES<Q2_K> = 1;
template <>
constexpr int BY_BYTES<Q3_K> = -1;
template <>
constexpr int BY_BYTES<Q8_K> = 1;
template <>
constexpr int BY_BYTES<TQ1_0> = 1;
template <>
constexpr int BY_BYTES<TQ2_0> = 1;
// What signed bytes are, where they are not weights: as many times (propolis_blocks.h).
template <class Format>
constexpr int TIMES = 1;
template <>
constexpr int TIMES<Q4_0> = Q4_0::UPPER;
template <>
constexpr int TIMES<Q5_0> = Q5_0::UPPER;
template <>
constexpr int TIMES<Q6_K> = Q6_K::UPPER;
// Whether scales are that large, or small, that a whole sum times them may be no number: it is divided by LARGEST before.
template <class Format>
constexpr bool FAR = false;
template <>
constexpr bool FAR<MXFP4> = true;

template <class Format>
constexpr int CHUNK_BYTES = CHUNK / Format::SIZE * Format::BYTES;

// Bytes in shared memory from `at` behind a whole word, which the compiler knows modulo 4 where `even`.
template <bool even>
struct Near {
    const u32* words;
    int at;
    PROPOLIS_METHOD Near operator+(int more) const { return {words, at + more}; }
    PROPOLIS_METHOD u32 word() const {
        return at % 4 ? word_between(words[at / 4], words[at / 4 + 1], (u32)at % 4 * 8) : words[at / 4];
    }
    PROPOLIS_METHOD u32 operator[](int more) const {
        const int place = at + more;
        if constexpr (even) return words[place / 4] >> place % 4 * 8 & 0xff;
        return ((const u8*)words)[place];
    }
    PROPOLIS_METHOD u16 half() const { return *(const u16*)((const u8*)words + at); }
};
template <bool even>
PROPOLIS_FN u32 word_at(Near<even> at) {
    return at.word();
}
template <bool even>
PROPOLIS_FN u32 halves_at(Near<even> at) {
    return at.word();
}
template <bool even>
PROPOLIS_FN u32 bytes_at(Near<even> at) {
    return at.word();
}
template <bool even>
PROPOLIS_FN f32 f16_at(Near<even> at) {
    return to_f32(f16{at.half()});
}

// A warp's 16 rows of weights, a chunk of each at a time, in `pieces` of 16 bytes.
template <class Format>
struct Staged {
    static constexpr int BYTES = CHUNK_BYTES<Format>;
    static constexpr bool EVEN = BYTES % 4 == 0;  // then rows begin at multiples of four bytes
    static constexpr int MOST = (BYTES + 2 * (PACK_BYTES - 1)) / PACK_BYTES;
    static constexpr int COPIES = (MOST * FRAGMENT + PROPOLIS_WARP - 1) / PROPOLIS_WARP;
    const u8* w;  // a multiple of 16, of which rows are offsets
    u8* slots;
    u32 start[COPIES], length;  // of rows
    i32 piece[COPIES];
    i32 row[COPIES];
    u32 behind[OWN_ROWS];
    int room, pieces;
    i32 chunks;
#if !defined(PROPOLIS_MMA)
    Pack<u32, PACK_BYTES / 4> held[COPIES];
#endif

    PROPOLIS_METHOD Staged(u8* shared, const u8* from, i64 first, i64 n, i64 depth, i64 row_bytes, int pieces)
        : pieces(pieces) {
        const u32 over = (u32)(u64)(from + first * row_bytes) % PACK_BYTES;
        w = from + first * row_bytes - over;
        room = (pieces | 1) * PACK_BYTES;
        slots = shared + warp_of_block() * (SLOTS * FRAGMENT) * room;
        length = (u32)(depth / Format::SIZE * Format::BYTES);
        chunks = (i32)((depth + CHUNK - 1) / CHUNK);
        const i32 last = (i32)(n - first < FRAGMENT ? n - first : FRAGMENT) - 1;
        const auto begin = [&](int row) { return (u32)(row < last ? row : last) * (u32)row_bytes + over; };
        const u32 inverse = 65536u / (u32)pieces + 1;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const u32 at = (u32)lane_of_warp() + i * PROPOLIS_WARP;
            row[i] = (i32)(at * inverse >> 16);
            piece[i] = (i32)at - row[i] * pieces;
            start[i] = begin(row[i]);
        }
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) behind[i] = begin(own_row(i));
    }
    // Where a copy's piece of a chunk lies.
    PROPOLIS_METHOD u32 from(int i, i32 chunk) const {
        return (start[i] + (u32)chunk * BYTES) / PACK_BYTES * PACK_BYTES + (u32)piece[i] * PACK_BYTES;
    }
    // How many of its bytes belong to the row, or to what is before that; in the last chunk maybe not all.
    PROPOLIS_METHOD i32 there(int i, u32 at) const {
        const i32 rest = (i32)(start[i] + length - at);
        return rest < 0 ? 0 : rest < PACK_BYTES ? rest : PACK_BYTES;
    }
    PROPOLIS_METHOD u8* to(int i, int slot) const {
        return slots + (slot * FRAGMENT + row[i]) * room + piece[i] * PACK_BYTES;
    }
#if defined(PROPOLIS_MMA)
    template <bool last>
    PROPOLIS_METHOD void copy_all(i32 chunk, int slot) const {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const u32 at = from(i, chunk);
            const i32 bytes = last ? there(i, at) : PACK_BYTES;
            if (row[i] < FRAGMENT) copy_async(to(i, slot), w + (bytes ? at : 0), bytes);
        }
    }
    PROPOLIS_METHOD void copy(i32 chunk, int slot) const {
        if (chunk + 1 < chunks) copy_all<false>(chunk, slot);
        else if (chunk < chunks) copy_all<true>(chunk, slot);
        end_of_stage();
    }
#else
    PROPOLIS_METHOD void fetch(i32 chunk) {
        if (chunk >= chunks) return;
        const bool last = chunk + 1 == chunks;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const u32 at = from(i, chunk);
            const i32 bytes = row[i] >= FRAGMENT ? 0 : last ? there(i, at) : PACK_BYTES;
            held[i] = {};
            if (bytes == PACK_BYTES) {
                held[i] = load_pack<PACK_BYTES / 4>((const u32*)(w + at));
            } else {
#pragma unroll
                for (int b = 0; b < PACK_BYTES; ++b) held[i].at[b / 4] |= b < bytes ? (u32)w[at + b] << b % 4 * 8 : 0u;
            }
        }
    }
    PROPOLIS_METHOD void put() const {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if (row[i] < FRAGMENT) store_pack<PACK_BYTES / 4>((u32*)to(i, 0), held[i]);
        }
    }
#endif
    PROPOLIS_METHOD Near<EVEN> chunk_at(int i, i32 chunk, int slot) const {
        const u32 over = (behind[i] + (u32)chunk * BYTES) % PACK_BYTES;
        return {(const u32*)(slots + (slot * FRAGMENT + own_row(i)) * room + over / 4 * 4), EVEN ? 0 : (int)(over % 4)};
    }
};

// How ROWS of activations are columns of products: where there is room the upper bytes are, and the lower ones beside
// them; else there are two products.
template <int ROWS>
struct Columned {
    static constexpr bool SIDE_BY_SIDE = ROWS * 2 <= COLUMNS;
    static constexpr int PLANES = SIDE_BY_SIDE ? 1 : 2;
    static constexpr int TILES = SIDE_BY_SIDE ? 1 : ROWS / COLUMNS;
    PROPOLIS_METHOD static int row(int tile, int column) {
        return SIDE_BY_SIDE ? column % (COLUMNS / 2) % ROWS : tile * COLUMNS + column;
    }
    PROPOLIS_METHOD static bool lower(int column) { return !SIDE_BY_SIDE || column >= COLUMNS / 2; }
};

// A thread's part of a group of rounded activations.
template <int ROWS>
struct GroupOf {
    typedef Columned<ROWS> C;
    ByteQuarters at[C::TILES][C::PLANES];  // upper bytes, lower ones

    PROPOLIS_METHOD void load(const RoundedRows& x, i64 group) {
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
            const u32* from = x.words + (group * ROWS + C::row(t, own_column())) * RoundedRows::GROUP_WORDS;
#pragma unroll
            for (int q = 0; q < QUARTERS; ++q) {
                if constexpr (C::SIDE_BY_SIDE) {
                    const Pack<u32, 2> pack = load_pack<2>(from + quarter(q) * 4 + (C::lower(own_column()) ? 2 : 0));
                    at[t][0].low[q] = pack.at[0], at[t][0].high[q] = pack.at[1];
                } else {
                    const Pack<u32, 4> pack = load_pack<4>(from + quarter(q) * 4);
                    at[t][0].low[q] = pack.at[0], at[t][0].high[q] = pack.at[1];
                    at[t][1].low[q] = pack.at[2], at[t][1].high[q] = pack.at[3];
                }
            }
        }
    }
};

constexpr u32 EACH_1 = 0x01010101;

// Four weights times a number, as signed bytes.
template <class Format, class Block>
PROPOLIS_FN u32 signed_word(Block block, int four, int times = 1) {
    if constexpr (TIMES<Format> > 1) {
        return Format::upper(block, four) ^ EACH_128;
    } else {
        constexpr int less = Format::less(true);
        const u32 word = Format::template word<true>(block, four) * (u32)times;
        return less ? (word + (u32)(128 - less * times) * EACH_1) ^ EACH_128 : word;
    }
}

// Products of a chunk with formats of 32, by which each group's are scaled.
template <class Format, int ROWS, bool whole = Format::SIZE == CHUNK>
struct OfChunk {
    typedef Columned<ROWS> C;
    f32 sums[C::TILES][ByteSums::COUNT] = {};

    template <class Block>
    PROPOLIS_METHOD void add(const Block (&rows)[OWN_ROWS], int group, const GroupOf<ROWS>& x) {
        ByteQuarters own[OWN_ROWS], ones[OWN_ROWS];
        Stored scales[OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const Block block = rows[i] + group * Format::BYTES;
#pragma unroll
            for (int q = 0; q < QUARTERS; ++q) {
                own[i].low[q] = signed_word<Format>(block, quarter(q));
                own[i].high[q] = signed_word<Format>(block, 4 + quarter(q));
                ones[i].low[q] = ones[i].high[q] = EACH_1;
            }
            Format::scales(block, 0, scales[i]);
        }
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
            ByteSums part[C::PLANES] = {}, totals[C::PLANES] = {};
#pragma unroll
            for (int p = 0; p < C::PLANES; ++p) {
                part[p].add(own, x.at[t][p]);
                if constexpr (Format::shifted) totals[p].add(ones, x.at[t][p]);
            }
#pragma unroll
            for (int i = 0; i < ByteSums::COUNT; ++i) {
                const Stored& by = scales[ByteSums::of_row(i)];
                const i32 sum = joined(part, i);
                sums[t][i] += by.scale * (FAR<Format> ? over_most(sum) : (f32)sum);
                // All rows have the same totals.
                if constexpr (Format::shifted) sums[t][i] += by.shift * (f32)joined(totals, i % ByteSums::OF_COLUMNS);
            }
        }
    }
    PROPOLIS_FN i32 joined(const ByteSums (&planes)[C::PLANES], int i) {
        return C::SIDE_BY_SIDE ? planes[0].at[i] : planes[0].at[i] * 256 + planes[C::PLANES - 1].at[i];
    }
    template <class Block>
    PROPOLIS_METHOD f32 sum(const Block (&)[OWN_ROWS], int t, int i) const {
        return FAR<Format> ? sums[t][i] : sums[t][i] * (1 / (LARGEST * TIMES<Format>));
    }
};

// And with formats of 256, whose scales of groups are whole numbers: so are sums.
template <class Format, int ROWS>
struct OfChunk<Format, ROWS, true> {
    typedef Columned<ROWS> C;
    static constexpr int SIGN = BY_BYTES<Format>;
    ByteSums sums[C::TILES][C::PLANES] = {};
    ByteSums least[Format::shifted ? C::TILES : 1][C::PLANES] = {};

    template <class Block>
    PROPOLIS_METHOD void add(const Block (&rows)[OWN_ROWS], int group, const GroupOf<ROWS>& x) {
        ByteQuarters own[OWN_ROWS], less[OWN_ROWS];
        i32 whole[OWN_ROWS][2];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                whole[i][half] = Format::whole(rows[i], group * 2 + half);
                auto& bytes = half ? own[i].high : own[i].low;
#pragma unroll
                for (int q = 0; q < QUARTERS; ++q) {
                    const int four = group * (PART / 4) + half * 4 + quarter(q);
                    bytes[q] = signed_word<Format>(rows[i], four, SIGN ? SIGN * whole[i][half] : 1);
                }
                if constexpr (Format::shifted) {
                    auto& each = half ? less[i].high : less[i].low;
#pragma unroll
                    for (int q = 0; q < QUARTERS; ++q) each[q] = (u32)Format::least(rows[i], group * 2 + half) * EACH_1;
                }
            }
        }
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
            for (int p = 0; p < C::PLANES; ++p) {
                const ByteQuarters& at = x.at[t][p];
                if constexpr (SIGN != 0) {
                    sums[t][p].add(own, at);
                } else if constexpr (SIXTEENS<Format>) {
                    ByteSums low = {}, high = {};
                    low.template add_half<0>(own, at);
                    high.template add_half<1>(own, at);
                    add(sums[t][p], low, whole, 0);
                    add(sums[t][p], high, whole, 1);
                } else {
                    ByteSums part = {};
                    part.add(own, at);
                    add(sums[t][p], part, whole, 0);
                }
                if constexpr (Format::shifted) least[t][p].add(less, at);
            }
        }
    }
    PROPOLIS_FN void add(ByteSums& to, const ByteSums& part, const i32 (&whole)[OWN_ROWS][2], int half) {
#pragma unroll
        for (int i = 0; i < ByteSums::COUNT; ++i) to.at[i] += part.at[i] * whole[ByteSums::of_row(i)][half];
    }
    PROPOLIS_FN f32 joined(const ByteSums (&planes)[C::PLANES], int i) {
        const f32 first = over_most(planes[0].at[i]);
        return C::SIDE_BY_SIDE ? first : first * 256 + over_most(planes[C::PLANES - 1].at[i]);
    }
    template <class Block>
    PROPOLIS_METHOD f32 sum(const Block (&rows)[OWN_ROWS], int t, int i) const {
        const Block block = rows[ByteSums::of_row(i)];
        const f32 unit = Format::unit(block) * (SIGN < 0 ? -1.0f : 1.0f / TIMES<Format>);
        f32 sum = unit * joined(sums[t], i);
        if constexpr (Format::shifted) sum -= Format::least_unit(block) * joined(least[t], i);
        return sum;
    }
};

// A block has 16 rows of weights.
template <class Format, int ROWS>
PROPOLIS_FN void product_of_bytes(f32* out, const u32* rounded, const u8* w, i64 m, i64 n, i64 depth, i64 row_bytes,
                                  i64 pieces) {
    typedef Columned<ROWS> C;
    PROPOLIS_DYNAMIC_SHARED(u8, shared);
    const i64 first = (i64)block_x() * FRAGMENT;
    Staged<Format> weights(shared, w, first, n, depth, row_bytes, (int)pieces);
    const i32 chunks = weights.chunks;
    const RoundedRows x((u32*)rounded, chunks, ROWS);
    f32 sums[C::TILES][ByteSums::COUNT] = {};
    i32 chunk = warp_of_block();
    int slot = 0;
#if defined(PROPOLIS_MMA)
    weights.copy(chunk, 0);
#else
    weights.fetch(chunk);
#endif
    for (; chunk < chunks; chunk += WARPS_OF_BLOCK) {
#if defined(PROPOLIS_MMA)
        wait_for_stage(SLOTS);
        sync_warp();
        weights.copy(chunk + WARPS_OF_BLOCK, slot ^ 1);
#else
        sync_warp();
        weights.put();
        sync_warp();
        weights.fetch(chunk + WARPS_OF_BLOCK);
#endif
        Near<Staged<Format>::EVEN> rows[OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) rows[i] = weights.chunk_at(i, chunk, slot);
        OfChunk<Format, ROWS> of_chunk;
#pragma unroll GROUPS_AT_ONCE<Format>
        for (int group = 0; group < RoundedRows::GROUPS; ++group) {
            GroupOf<ROWS> own;
            own.load(x, (i64)chunk * RoundedRows::GROUPS + group);
            of_chunk.add(rows, group, own);
            in_order();
        }
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
            for (int i = 0; i < ByteSums::COUNT; ++i) {
                const int column = ByteSums::of_column(i);
                const f32 sum = of_chunk.sum(rows, t, i) * (C::lower(column) ? 1.0f : 256.0f);
                sums[t][i] += sum * x.most[(i64)chunk * ROWS + C::row(t, column)];
            }
        }
#if defined(PROPOLIS_MMA)
        slot ^= 1;
#endif
    }
    // The warps' sums, and those of planes that lie side by side.
    f32* const joined = (f32*)shared;
    constexpr int WIDE = C::TILES * COLUMNS;
    __syncthreads();
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
        for (int i = 0; i < ByteSums::COUNT; ++i) {
            const int column = t * COLUMNS + ByteSums::of_column(i);
            joined[(warp_of_block() * WIDE + column) * FRAGMENT + own_row(ByteSums::of_row(i))] = sums[t][i];
        }
    }
    __syncthreads();
    for (int i = (int)thread_x(); i < FRAGMENT * ROWS; i += BLOCK) {
        const int column = i / FRAGMENT;
        f32 sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS_OF_BLOCK; ++warp) {
            const f32* at = joined + (warp * WIDE + column) * FRAGMENT + i % FRAGMENT;
            sum += at[0];
            if constexpr (C::SIDE_BY_SIDE) sum += at[COLUMNS / 2 * FRAGMENT];
        }
        const i64 to = first + i % FRAGMENT;
        if (to < n && column < m) out[column * n + to] = sum;
    }
}
#endif
