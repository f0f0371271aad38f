// Products of matrices tile by tile: operands go through shared memory, every thread of the 256
// has (SIDE / 16)**2 elements of a SIDE x SIDE tile in registers, in squares of 4 x 4.
#pragma once

#include "propolis_runs.h"

// How deep a tile of operands is, so that each thread fetches one run of it.
template <int SIDE>
constexpr int DEPTH = RUN * BLOCK / SIDE;

// Operands lie in shared memory column by column: element (side, depth) of a tile.  Sides are
// mixed with the depth, so that threads that store neighbours in depth meet no common bank.
template <int SIDE>
PROPOLIS_FN int mixed(int side, int depth) {
    return side ^ depth / RUN * (SIDE / RUN);
}

// Which run of a tile a thread fetches.
struct Place {
    int side, depth;
    bool across;
};
template <int SIDE>
PROPOLIS_FN Place place_of(bool across) {
    constexpr int RUNS = DEPTH<SIDE> / RUN;
    const int t = (int)thread_x();
    if (across) return Place{t % (SIDE / RUN) * RUN, t / (SIDE / RUN), true};
    return Place{t / RUNS, t % RUNS * RUN, false};
}

template <class C>
PROPOLIS_FN void load_four(const C* from, C* to) {
    constexpr int N = PACK_BYTES / sizeof(C);
#pragma unroll
    for (int first = 0; first < 4; first += N) {
        const Pack<C, N> pack = load_pack<N>(from + first);
#pragma unroll
        for (int k = 0; k < N; ++k) to[first + k] = pack.at[k];
    }
}

template <class C>
PROPOLIS_FN void store_four(C* to, const C* from) {
    constexpr int N = PACK_BYTES / sizeof(C);
#pragma unroll
    for (int first = 0; first < 4; first += N) {
        Pack<C, N> pack;
#pragma unroll
        for (int k = 0; k < N; ++k) pack.at[k] = from[first + k];
        store_pack<N>(to + first, pack);
    }
}

template <int SIDE, class C>
PROPOLIS_FN void put_run(C* tile, Place place, const C (&run)[RUN]) {
    const int side = mixed<SIDE>(place.side, place.depth);
    if (place.across) {
        store_four(tile + place.depth * SIDE + side, run);
        store_four(tile + place.depth * SIDE + side + 4, run + 4);
    } else {
#pragma unroll
        for (int k = 0; k < RUN; ++k) tile[(place.depth + k) * SIDE + side] = run[k];
    }
}

// The first row, and the first column, of this thread's squares.
PROPOLIS_FN int own_row() { return (int)thread_x() / 16 * 4; }
PROPOLIS_FN int own_column() { return (int)thread_x() % 16 * 4; }

// What stands in a tile for an element that does not exist: not even with an infinity does it make a
// product.  A NaN that no operation gives; who uses it makes others of NaNs that look the same.
template <class C>
struct Absent;
template <>
struct Absent<f32> {
    typedef u32 Bits;
    static constexpr Bits bits = 0x7fd5beefu;
};
template <>
struct Absent<f64> {
    typedef u64 Bits;
    static constexpr Bits bits = 0x7ff8d5beefd5beefull;
};
template <class C>
PROPOLIS_FN C absent() {
    return bits_as<C>(Absent<C>::bits);
}
template <class C>
PROPOLIS_FN bool is_absent(C x) {
    return bits_as<typename Absent<C>::Bits>(x) == Absent<C>::bits;
}

// Where `marked`, elements of `right` may be absent.
template <int SIDE, bool marked = false, class C>
PROPOLIS_FN void multiply(const C* left, const C* right, C (&sum)[SIDE / 16][SIDE / 16]) {
    constexpr int R = SIDE / 16;
    const int row = own_row();
    const int column = own_column();
#pragma unroll 1  // all at once needs more registers than it saves time
    for (int run = 0; run < DEPTH<SIDE>; run += RUN) {
        const C* from_left = left + run * SIDE + mixed<SIDE>(row, run);
        const C* from_right = right + run * SIDE + mixed<SIDE>(column, run);
#pragma unroll
        for (int k = 0; k < RUN; ++k) {
            C a[R], b[R];
#pragma unroll
            for (int r = 0; r < R; r += 4) {
                load_four(from_left + k * SIDE + r * 16, a + r);
                load_four(from_right + k * SIDE + r * 16, b + r);
            }
#pragma unroll
            for (int i = 0; i < R; ++i) {
#pragma unroll
                for (int j = 0; j < R; ++j) {
                    if constexpr (marked) {
                        sum[i][j] = is_absent(b[j]) ? sum[i][j] : sum[i][j] + a[i] * b[j];
                    } else {
                        sum[i][j] += a[i] * b[j];
                    }
                }
            }
        }
    }
}

// sum += rows i0... of a times rows j0... of b.  Element [i][j] of sum is that of row
// i0 + i / 4 * 64 + own_row() + i % 4, and so for columns.  All threads of the block come here
// together; the tiles may be overwritten afterwards.  Of tiles that are seldom full, who has none of
// the first `rows` rows only fetches.
template <int SIDE, class C, class A, class B>
PROPOLIS_FN void tile_product(const A& a, const B& b, i64 i0, i64 j0, i64 depth, C* left,
                              C* right, C (&sum)[SIDE / 16][SIDE / 16], int rows = SIDE) {
    const Place at_a = place_of<SIDE>(a.across());
    const Place at_b = place_of<SIDE>(b.across());
    if (depth == 0) return;
    C next_a[RUN], next_b[RUN];
    Walk<A> from_a(a, i0 + at_a.side, at_a.depth);
    Walk<B> from_b(b, j0 + at_b.side, at_b.depth);
    from_a.fetch(next_a);
    from_b.fetch(next_b);
    for (i64 k = 0; k < depth; k += DEPTH<SIDE>) {
        put_run<SIDE>(left, at_a, next_a);
        put_run<SIDE>(right, at_b, next_b);
        __syncthreads();
        if (k + DEPTH<SIDE> < depth) {
            from_a.deeper(DEPTH<SIDE>);
            from_b.deeper(DEPTH<SIDE>);
            from_a.fetch(next_a);
            from_b.fetch(next_b);
        }
        if (rows == SIDE || own_row() < rows) multiply<SIDE, has_absent<B>>(left, right, sum);
        __syncthreads();
    }
}

// Where a product goes: (m, n), of rows that are `apart`, a multiple of n.  The bias of an element, if
// there is one, is bias[row * bias_row + column * bias_step].
template <class T>
struct Target {
    T* out;
    const T* bias;  // or null
    i64 bias_row, bias_step;
    i64 m, n, apart;
};

// So many sums go to a target at once; four at most.
template <class T>
constexpr int STORED = RUN_PACK<T> < 4 ? RUN_PACK<T> : 4;

// Neighbours of a row, of what lies within (m, n).
template <class T>
PROPOLIS_FN void store_sums(const Target<T>& to, i64 row, i64 column, const Compute<T>* sums) {
    constexpr int N = STORED<T>;
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        Compute<T> value = sums[k];
        if (to.bias && row < to.m && column + k < to.n) {
            value += wide(to.bias[row * to.bias_row + (column + k) * to.bias_step]);
        }
        pack.at[k] = narrow<T>(value);
    }
    T* at = to.out + row * to.apart + column;
    if (to.n % N == 0 && aligned<N>(to.out)) {
        if (row < to.m && column < to.n) store_pack<N>(at, pack);
    } else {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (row < to.m && column + k < to.n) at[k] = pack.at[k];
        }
    }
}

// The sums of a tile, N at a time, to whatever store_sums is given.
template <int SIDE, int N, class To, class C>
PROPOLIS_FN void store_tile(const To& to, i64 i0, i64 j0, const C (&sum)[SIDE / 16][SIDE / 16]) {
#pragma unroll
    for (int i = 0; i < SIDE / 16; ++i) {
        const i64 row = i0 + i / 4 * 64 + own_row() + i % 4;
#pragma unroll
        for (int j = 0; j < SIDE / 16; j += N) {
            store_sums(to, row, j0 + j / 4 * 64 + own_column() + j % 4, &sum[i][j]);
        }
    }
}
