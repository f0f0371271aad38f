// Products of one row of activations with weights in blocks, in integers: activations are rounded to
// 16 bits, 32 with a scale, and multiplied as two planes of signed bytes, four products an
// instruction.  The rounded row lies in shared memory; each block rounds it for itself.
#pragma once

#include "propolis_reduce.h"
#include "propolis_steps_k.h"

constexpr int LOADED_AT_ONCE = 4;  // packs of activations, by a thread

// Whether weights are on their way while those before are multiplied.  Not on NVIDIA, whose other warps multiply
// meanwhile, and whose registers hold more of them so.
#if defined(__CUDACC__)
constexpr bool AHEAD = false;
#else
constexpr bool AHEAD = true;
#endif

// A row in ROUNDED_BYTES bytes of shared memory for each part: of sixteen numbers, which are multiplied by LARGEST / most
// and rounded, upper bytes, lower ones, their sum and `most`, the largest magnitude of the part.  Sixteens lie where Step
// says, so that neighbouring lanes read neighbouring ones.
template <class Step>
struct Rounded {
    typedef Step Taken;
    struct Sum {
        i32 total;
        f32 most;
    };
    u32* words;  // 2 x sixteens x 4: upper bytes, then lower ones
    Sum* sums;
    int parts;

    PROPOLIS_METHOD Rounded(u32* at, int depth)
        : words(at), sums((Sum*)(void*)(at + depth / PART * 16)), parts(depth / PART) {}

    PROPOLIS_METHOD int steps() const { return parts / Step::PAIRS; }

    // Of rows that lie behind each other, another one.
    PROPOLIS_METHOD Rounded row(int r) const {
        Rounded other = *this;
        other.words += r * parts * (ROUNDED_BYTES / 4);
        other.sums += r * parts * (ROUNDED_BYTES / (int)sizeof(Sum));
        return other;
    }

    PROPOLIS_METHOD Activations of(int step, int pair) const {
        Activations own;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int place = (pair * 2 + half) * steps() + step;
            own.upper[half] = load_pack<4>(words + place * 4);
            own.lower[half] = load_pack<4>(words + (2 * parts + place) * 4);
            own.total[half] = sums[place].total;
            own.most[half] = sums[place].most;
        }
        return own;
    }

    PROPOLIS_METHOD void load(Step& own, const u8* row, int step) const { own.load(row, step); }
    PROPOLIS_METHOD f32 product(const Step& own, int step) const {
        f32 sum[1] = {};
        add(own, step, sum);
        return sum[0];
    }
    // The products of several rows.
    template <int ROWS>
    PROPOLIS_METHOD void add(const Step& own, int step, f32 (&sum)[ROWS]) const {
#pragma unroll
        for (int pair = 0; pair < Step::PAIRS; ++pair) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                sum[r] += own.dot(pair, row(r).of(anew(step), pair));  // lest each place be kept through a loop
                in_order(sum[r]);
            }
        }
    }

    // Four numbers, the pack-th of the row: of all lanes of a warp together, beyond the row too.
    PROPOLIS_METHOD void take(const Pack<f32, 4>& numbers, int pack) const { round(numbers.at, pack); }
    PROPOLIS_METHOD void end(int) const {}

    // Of all threads of the block, LOADED_AT_ONCE packs of each at a time.
    template <class T>
    PROPOLIS_METHOD void fill(const T* x, int threads) const {
        const int packs = parts * (PART / RUN);
        for (int first = 0; first < packs; first += threads * LOADED_AT_ONCE) {
            f32 held[LOADED_AT_ONCE][RUN] = {};
#pragma unroll
            for (int e = 0; e < LOADED_AT_ONCE; ++e) {
                const int pack = first + e * threads + (int)thread_x();
                if (pack < packs) load_run(x + pack * RUN, held[e]);
            }
#pragma unroll
            for (int e = 0; e < LOADED_AT_ONCE; ++e) {
                if (first + e * threads < packs) round(held[e], first + e * threads + (int)thread_x());
            }
        }
        __syncthreads();
    }

    // So many numbers of each of some neighbouring lanes are a part.
    template <int N>
    PROPOLIS_METHOD void round(const f32 (&own)[N], int pack) const {
        constexpr int LANES = PART / N;
        f32 top = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) top = larger_or_nan(top, math::fabs(own[i]));
#pragma unroll
        for (int mask = 1; mask < LANES; mask *= 2) top = larger_or_nan(top, warp_shfl_xor(top, mask));
        Pack<u32, N / 4> upper, lower;
        i32 sum = rounded_bytes(own, top, upper, lower);
#pragma unroll
        for (int mask = 1; mask < LANES / 2; mask *= 2) sum += warp_shfl_xor(sum, mask);
        const int part = pack / LANES, lane = pack % LANES;
        if (part >= parts) return;
        const u32 sixteen = (u32)(part * 2 + lane / (LANES / 2));
        const int place = (int)(Step::which(sixteen) * steps() + Step::step(sixteen)), at = lane % (LANES / 2);
        store_pack<N / 4>(words + place * 4 + at * (N / 4), upper);
        store_pack<N / 4>(words + (2 * parts + place) * 4 + at * (N / 4), lower);
        if (at == 0) sums[place] = {sum, most_or_nan(top)};
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
// at a time, and then as many further on.  Weights are loaded a step ahead (AHEAD), the first before the row is there.
// Of ROWS that are held, sums are those of each with that row of weights.
template <int HALVES, int ROWS = 1, class Held, class Place, class Fill, class Finish>
PROPOLIS_FN void products_of_one(const Held& held, const u8* w, i64 items, i64 row_bytes, int lanes, int threads,
                                 const Place& place, Fill&& fill, Finish&& finish) {
    typedef typename Held::Taken Taken;
    static_assert(HALVES == 1 || ROWS == 1, "products_of_one: halves of several rows");
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
        f32 sum[ROWS * HALVES] = {};
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            for (int step = lane; step < steps; step += lanes) {
                const bool more = step + lanes < steps;
                const bool again = more || half + 1 < HALVES;
                const u8* from = row(again ? item : item + apart, more ? half : (half + 1) % HALVES);
                Taken next;
                if constexpr (AHEAD) held.load(next, from, more ? step + lanes : lane);
                if constexpr (ROWS == 1) sum[half] += held.product(own, step);
                else held.add(own, step, sum);
                if constexpr (AHEAD) own = next;
                else held.load(own, from, more ? step + lanes : lane);
            }
#pragma unroll
            for (int r = half; r < half + ROWS; ++r) {
                for (int mask = lanes / 2; mask > 0; mask >>= 1) sum[r] += warp_shfl_xor(sum[r], mask);
            }
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

// The same of up to ROWS rows, which all rows of weights meet in registers.
template <class Format, int ROWS>
PROPOLIS_FN void product_of_rows(f32* out, const f32* x, const u8* w, i64 m, i64 n, i64 depth, i64 row_bytes,
                                 int lanes, int threads) {
    PROPOLIS_DYNAMIC_SHARED(u32, shared);
    const Rounded<Step<Format>> rounded(shared, (int)depth);
    const auto fill = [&] {
        for (int r = 0; r < ROWS; ++r) rounded.row(r).fill(x + (r < m ? r : m - 1) * depth, threads);
    };
    products_of_one<1, ROWS>(
        rounded, w, n, row_bytes, lanes, threads, Halves{n}, fill, [&](bool mine, i64 row, const f32(&sum)[ROWS]) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (mine && r < m) out[r * n + row] = sum[r];
            }
        });
}
