// Products of one row of activations with weights in blocks, in integers: activations are rounded to
// 16 bits, 32 with a scale, and multiplied as two planes of signed bytes, four products an
// instruction.  The rounded row lies in shared memory; each block rounds it for itself.
#pragma once

#include "propolis_reduce.h"
#include "propolis_steps.h"

// The larger; NaN where either is.
PROPOLIS_FN f32 larger_or_nan(f32 a, f32 b) { return a > b || math::is_nan(a) ? a : b; }

constexpr int LOADED_AT_ONCE = 4;  // packs of activations, by a thread

// A row in ROUNDED_BYTES bytes of shared memory for each part, which is `most`, its largest magnitude,
// and its numbers times LARGEST / most.  Parts lie where Step says, so that neighbouring lanes read
// neighbouring ones.
template <class Step>
struct Rounded {
    typedef Step Taken;
    u32* words;  // 4 x parts x 4: upper bytes of sixteen and sixteen, then lower ones
    f32* most;   // parts
    i32* sums;   // 2 x parts: of sixteen numbers each
    int parts;

    PROPOLIS_METHOD Rounded(u32* at, int depth)
        : words(at), most((f32*)(at + depth / PART * 16)), sums((i32*)(at + depth / PART * 17)), parts(depth / PART) {}

    PROPOLIS_METHOD int steps() const { return parts / Step::PARTS; }

    PROPOLIS_METHOD Activations of(int step, int which) const {
        const int place = which * steps() + step;
        Activations own;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            own.upper[half] = load_pack<4>(words + (half * parts + place) * 4);
            own.lower[half] = load_pack<4>(words + ((2 + half) * parts + place) * 4);
            own.total[half] = (f32)sums[half * parts + place] * (1 / LARGEST);
        }
        own.most = most[place];
        return own;
    }

    PROPOLIS_METHOD void load(Step& own, const u8* row, int step) const { own.load(row, step); }
    PROPOLIS_METHOD f32 product(const Step& own, int step) const {
        f32 sum = 0;
#pragma unroll
        for (int which = 0; which < Step::PARTS; ++which) {
            const Activations x = of(step, which);
            sum += own.dot(which, x) * x.most;
        }
        return sum;
    }

    // Four numbers, the pack-th of the row: of all lanes of a warp together, beyond the row too.
    PROPOLIS_METHOD void take(const Pack<f32, 4>& numbers, int pack) const { round(numbers, pack / 8, pack % 8); }
    PROPOLIS_METHOD void end(int) const {}

    // Of all threads of the block; eight have a part.
    template <class T>
    PROPOLIS_METHOD void fill(const T* x, int threads) const {
        const int apart = threads / 8;
        const int lane = (int)thread_x() % 8;
        for (int first = (int)thread_x() / 8; first - (int)thread_x() / 8 < parts;
             first += apart * LOADED_AT_ONCE) {
            Pack<T, 4> packs[LOADED_AT_ONCE] = {};
#pragma unroll
            for (int e = 0; e < LOADED_AT_ONCE; ++e) {
                const int part = first + e * apart;
                if (part < parts) packs[e] = load_pack<4>(x + part * PART + lane * 4);
            }
#pragma unroll
            for (int e = 0; e < LOADED_AT_ONCE; ++e) {
                if (first - (int)thread_x() / 8 + e * apart < parts) {
                    round(packs[e], first + e * apart, lane);
                }
            }
        }
        __syncthreads();
    }

    template <class T>
    PROPOLIS_METHOD void round(const Pack<T, 4>& pack, int part, int lane) const {
        f32 own[4];
        f32 top = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            own[i] = wide(pack.at[i]);
            top = larger_or_nan(top, math::fabs(own[i]));
        }
        for (int mask = 1; mask < 8; mask *= 2) top = larger_or_nan(top, warp_shfl_xor(top, mask));
        // An infinity, and NaN, make all products of the part NaN: they are `most`.
        const bool finite = top < PROPOLIS_INF;
        const f32 up = top < 0x1p-64f ? 0x1p64f : 1.0f;  // whose inverse is no infinity
        const f32 factor = finite && top > 0 ? LARGEST / (top * up) : 0.0f;
        u32 upper = 0, lower = 0;
        i32 sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i32 q = finite ? (i32)math::rint(own[i] * up * factor) : 0;
            const i32 high = (q + 128) >> 8;
            upper |= (u32)(high & 0xff) << 8 * i;
            lower |= (u32)((q - high * 256) & 0xff) << 8 * i;
            sum += q;
        }
        sum += warp_shfl_xor(sum, 1);
        sum += warp_shfl_xor(sum, 2);
        if (part >= parts) return;
        const int half = lane / 4, place = (int)(Step::which(part) * steps() + Step::step(part));
        words[(half * parts + place) * 4 + lane % 4] = upper;
        words[((2 + half) * parts + place) * 4 + lane % 4] = lower;
        if (lane % 4 == 0) sums[half * parts + place] = sum;
        if (lane == 0) most[place] = finite ? top : PROPOLIS_NAN;
    }
};

// Which row of weights is an item's of that number, where they lie in as many parts as an item has rows.
struct Halves {
    i64 items;
    PROPOLIS_METHOD i64 operator()(i64 item, int half) const { return item + half * items; }
};

// Products of a row that `fill` puts into `held`, as Rounded keeps it or a like of that, with rows of weights:
// `finish(mine, item, sums)` gets those of rows place(item, 0), place(item, 1), ... HALVES in all.  All threads of the
// block call it together; `mine` is true in one thread of each item that there is.  A block has threads / lanes items
// at a time, and then as many further on.  Weights are loaded a step ahead, the first before the row is there.
template <int HALVES, class Held, class Place, class Fill, class Finish>
PROPOLIS_FN void products_of_one(const Held& held, const u8* w, i64 items, i64 row_bytes, int lanes, int threads,
                                 const Place& place, Fill&& fill, Finish&& finish) {
    typedef typename Held::Taken Taken;
    const int steps = held.steps(), lane = (int)thread_x() & (lanes - 1);
    const i64 each = threads / lanes, apart = blocks_x() * each;
    // Beyond the last item, that once more.
    const auto row = [&](i64 item, int half) {
        return w + place(item < items ? item : items - 1, half) * row_bytes;
    };
    i64 item = block_x() * each + (i64)thread_x() / lanes;
    Taken own;
    held.load(own, row(item, 0), lane < steps ? lane : 0);
    fill();
    for (i64 first = block_x() * each; first < items; first += apart, item += apart) {
        f32 sum[HALVES] = {};
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            for (int step = lane; step < steps; step += lanes) {
                const bool more = step + lanes < steps;
                const bool again = more || half + 1 < HALVES;
                Taken next;
                held.load(next, row(again ? item : item + apart, more ? half : (half + 1) % HALVES),
                          more ? step + lanes : lane);
                sum[half] += held.product(own, step);
                own = next;
            }
            for (int mask = lanes / 2; mask > 0; mask >>= 1) sum[half] += warp_shfl_xor(sum[half], mask);
        }
        finish(lane == 0 && item < items, item, sum);
    }
}

template <class Format, class T>
PROPOLIS_FN void product_of_one(T* out, const T* x, const u8* w, i64 n, i64 depth, i64 row_bytes,
                                int lanes, int threads) {
    PROPOLIS_DYNAMIC_SHARED(u32, shared);
    const Rounded<Step<Format>> rounded(shared, (int)depth);
    products_of_one<1>(
        rounded, w, n, row_bytes, lanes, threads, Halves{n}, [&] { rounded.fill(x, threads); },
        [&](bool mine, i64 row, const f32(&sum)[1]) {
            if (mine) out[row] = narrow<T>(sum[0]);
        });
}
