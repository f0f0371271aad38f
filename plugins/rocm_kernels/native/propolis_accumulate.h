// What is reduced to what: accumulators that take elements and merge, in any order.
#pragma once

#include "propolis_convert.h"
#include "propolis_partials.h"
#include "propolis_reduce.h"

// Integers are accumulated in 32 bits or more, floats where they are computed.
template <class T>
struct WideOf {
    typedef Compute<T> type;
};
template <>
struct WideOf<u8> {
    typedef u32 type;
};
template <>
struct WideOf<i8> {
    typedef i32 type;
};
template <>
struct WideOf<i16> {
    typedef i32 type;
};
template <class T>
using Wide = typename WideOf<T>::type;

template <class T>
PROPOLIS_FN T from_wide(Wide<T> x) {
    if constexpr (is_float<T>) {
        return narrow<T>(x);
    } else {
        return (T)x;
    }
}

template <class T>
struct Sum {
    static constexpr bool placed = false;
    typedef T In;
    typedef T Out;
    typedef Unsigned<Wide<T>> A;
    PROPOLIS_FN A identity() { return 0; }
    PROPOLIS_FN void add(A& a, T x, i64) { a += (A)wide(x); }
    PROPOLIS_FN A merge(A a, A b) { return a + b; }
    PROPOLIS_FN T finish(A a, i64, i64) { return from_wide<T>((Wide<T>)a); }
};

template <class T>
struct Prod : Sum<T> {
    typedef typename Sum<T>::A A;
    PROPOLIS_FN A identity() { return 1; }
    PROPOLIS_FN void add(A& a, T x, i64) { a *= (A)wide(x); }
    PROPOLIS_FN A merge(A a, A b) { return a * b; }
};

template <class T>
struct Mean : Sum<T> {
    PROPOLIS_FN T finish(Compute<T> a, i64 n, i64) { return narrow<T>(a / (Compute<T>)n); }
};

// The least and the most of T, for no elements.
template <class T, bool most>
PROPOLIS_FN Wide<T> end_of() {
    if constexpr (is_float<T>) {
        return (Wide<T>)(most ? PROPOLIS_INF : -PROPOLIS_INF);
    } else {
        return most ? Limits<T>::high : Limits<T>::low;
    }
}

template <class T, bool most>
struct Extreme {
    static constexpr bool placed = false;
    typedef T In;
    typedef T Out;
    typedef Wide<T> A;
    PROPOLIS_FN A identity() { return end_of<T, !most>(); }
    PROPOLIS_FN void add(A& a, T x, i64) { a = merge(a, (A)wide(x)); }
    PROPOLIS_FN A merge(A a, A b) {  // NaN stays
        return (most ? a > b : a < b) || math::is_nan(a) ? a : b;
    }
    PROPOLIS_FN T finish(A a, i64, i64) { return from_wide<T>(a); }
};
template <class T>
using Max = Extreme<T, true>;
template <class T>
using Min = Extreme<T, false>;

template <class V>
struct Place {
    V value;
    i64 index;  // -1: nothing yet
};

template <class T, bool most>
struct ArgExtreme {
    static constexpr bool placed = true;
    typedef T In;
    typedef i64 Out;
    typedef Place<Wide<T>> A;
    PROPOLIS_FN A identity() { return A{0, -1}; }
    // NaN is more, and less, than any number.
    PROPOLIS_FN bool beats(Wide<T> x, Wide<T> y) {
        return (most ? x > y : x < y) || (math::is_nan(x) && !math::is_nan(y));
    }
    // Whether none of a pack beats what there is; NaN may, and nothing does that NaN: both are looked at.
    template <int N>
    PROPOLIS_FN bool beats_none(const A& a, const Pack<T, N>& pack) {
        bool some = a.index < 0;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const Wide<T> x = (Wide<T>)wide(pack.at[k]);
            some |= most ? !(x <= a.value) : !(x >= a.value);
        }
        return !some;
    }
    PROPOLIS_FN void add(A& a, T x, i64 index) {
        const Wide<T> value = (Wide<T>)wide(x);
        const bool better = a.index < 0 || beats(value, a.value);
        a.value = better ? value : a.value;
        a.index = better ? index : a.index;
    }
    PROPOLIS_FN A merge(A a, A b) {
        const bool earlier = !beats(a.value, b.value) && b.index < a.index;
        const bool better =
            b.index >= 0 && (a.index < 0 || beats(b.value, a.value) || earlier);
        return A{better ? b.value : a.value, better ? b.index : a.index};
    }
    PROPOLIS_FN i64 finish(A a, i64, i64) { return a.index; }
};
template <class T>
using ArgMax = ArgExtreme<T, true>;
template <class T>
using ArgMin = ArgExtreme<T, false>;

// Count, mean, and sum of squared deviations (Chan, Golub, LeVeque 1979).
template <class C>
struct Moments {
    C count;
    C mean;
    C squares;
};

template <class C>
PROPOLIS_FN Moments<C> merged(Moments<C> a, Moments<C> b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    const C count = a.count + b.count;
    const C delta = b.mean - a.mean;
    const C share = b.count / count;
    return Moments<C>{count, a.mean + delta * share,
                      a.squares + b.squares + delta * (delta * a.count * share)};
}

template <class T>
struct Var {
    static constexpr bool placed = false;
    typedef T In;
    typedef T Out;
    typedef Compute<T> C;
    typedef Moments<C> A;
    PROPOLIS_FN A identity() { return A{0, 0, 0}; }
    PROPOLIS_FN void add(A& a, T x, i64) {
        const C value = wide(x);
        a.count += 1;
        const C delta = value - a.mean;
        a.mean += delta / a.count;
        a.squares += delta * (value - a.mean);
    }
    PROPOLIS_FN A merge(A a, A b) { return merged(a, b); }
    PROPOLIS_FN T finish(A a, i64 n, i64 correction) {
        const C rest = (C)(n - correction);
        return narrow<T>(n > correction ? a.squares / rest : (C)PROPOLIS_NAN);
    }
};

// A pack of neighbours, of which the first has this index.
template <class R, int N, class A>
PROPOLIS_FN void add_pack(A& a, Pack<typename R::In, N> pack, i64 index) {
#pragma unroll
    for (int k = 0; k < N; ++k) R::add(a, pack.at[k], index + k);
}

// -- accumulators of several threads -------------------------------------------------------------

template <class R, class A>
PROPOLIS_FN A warp_merge(A value) {
#pragma unroll
    for (int mask = PROPOLIS_WARP / 2; mask > 0; mask >>= 1) {
        value = R::merge(value, shuffle_xor(value, mask));
    }
    return value;
}

// Of a block of BLOCK threads.
template <class R, class A>
PROPOLIS_FN A block_merge(A value) {
    constexpr int warps = BLOCK / PROPOLIS_WARP;
    __shared__ A partial[warps];
    value = warp_merge<R>(value);
    __syncthreads();  // what was merged before may still be read
    if (lane_of_warp() == 0) partial[warp_of_block()] = value;
    __syncthreads();
    return warp_merge<R>(lane_of_warp() < warps ? partial[lane_of_warp()] : R::identity());
}
