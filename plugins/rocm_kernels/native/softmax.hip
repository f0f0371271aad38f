// Softmax and its logarithm.  Semantics: core's propolis/ops/softmax.py.  Along the last dimension
// a group of threads takes a row, which is read once where registers hold it; along another one a
// thread takes a column, and reads it twice.
//
// NaN needs no care: maxima pass it by, the sum of exponentials does not.  Neither does a row of
// -inf: x - max is NaN.
#include "propolis_rows.h"

// A maximum, and the sum of exponentials below it.
template <class C>
struct Sums {
    C max;
    C sum;
};

// 0 for -inf, from which no number may be subtracted.
template <class C>
PROPOLIS_FN C base_of(C max) {
    return max == (C)-PROPOLIS_INF ? 0 : max;
}

template <class C>
PROPOLIS_FN C rescaled(Sums<C> sums, C max) {
    return sums.sum * math::exp(sums.max - base_of(max));
}

template <int N, class C>
PROPOLIS_FN void include(Sums<C>& sums, const C* values) {
    C max = sums.max;
#pragma unroll
    for (int k = 0; k < N; ++k) max = values[k] > max ? values[k] : max;
    if (max > sums.max) {
        sums.sum = rescaled(sums, max);
        sums.max = max;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) sums.sum += math::exp(values[k] - base_of(max));
}

// What makes of x its softmax.
template <bool log, class C>
struct Finish {
    C max;
    C sum;
    C scale;

    PROPOLIS_FN Finish of(C max, C sum) {
        return Finish{max, log ? math::log(sum) : sum, log ? 0 : 1 / sum};
    }
};

template <bool log, class C>
PROPOLIS_FN C finish(const Finish<log, C>& f, C x) {
    return log ? x - f.max - f.sum : math::exp(x - f.max) * f.scale;
}

template <int threads, bool log, class T>
PROPOLIS_FN void softmax_held(T* out, const T* x, int width) {
    typedef Compute<T> C;
    constexpr int N = PACK_BYTES / sizeof(T);
    constexpr int count = HELD<threads, T>;
    C values[count];
#pragma unroll
    for (int k = 0; k < count; ++k) values[k] = (C)-PROPOLIS_INF;
    each_held<threads, T>(width, [&](int i, int p) {
        const Pack<T, N> pack = load_pack<N>(x + i);
#pragma unroll
        for (int k = 0; k < N; ++k) values[p * N + k] = wide(pack.at[k]);
    });
    C max = (C)-PROPOLIS_INF, sum = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) max = values[k] > max ? values[k] : max;
    max = group_max<threads>(max);
    each_held<threads, T>(width, [&](int, int p) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const C e = math::exp(values[p * N + k] - max);
            sum += e;
            if (!log) values[p * N + k] = e;
        }
    });
    sum = group_sum<threads>(sum);
    const C shift = log ? math::log(sum) : 0;
    const C scale = log ? 0 : 1 / sum;
    each_held<threads, T>(width, [&](int i, int p) {
        Pack<T, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const C v = values[p * N + k];
            result.at[k] = narrow<T>(log ? v - max - shift : v * scale);
        }
        store_pack<N>(out + i, result);
    });
}

template <int threads, int N, bool log, class T>
PROPOLIS_FN void softmax_long(T* out, const T* x, i64 width, i64 stride) {
    typedef Compute<T> C;
    Sums<C> sums = {(C)-PROPOLIS_INF, 0};
    along_row<threads, N>(width, [&](i64 i) {
        const Pack<T, N> pack = load_at<N>(x, i, stride);
        C values[N];
#pragma unroll
        for (int k = 0; k < N; ++k) values[k] = wide(pack.at[k]);
        include<N>(sums, values);
    });
    const C max = group_max<threads>(sums.max);
    const C sum = group_sum<threads>(rescaled(sums, max));
    const auto f = Finish<log, C>::of(max, sum);
    along_row<threads, N>(width, [&](i64 i) {
        const Pack<T, N> pack = load_at<N>(x, i, stride);
        Pack<T, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) result.at[k] = narrow<T>(finish(f, wide(pack.at[k])));
        store_pack<N>(out + i, result);
    });
}

template <int threads, bool held, bool log, class T>
PROPOLIS_FN void softmax_row(T* out, const T* x, i64 width, i64 stride) {
    constexpr int N = PACK_BYTES / sizeof(T);
    if (!packed_row<N>(x, width, stride) || !aligned<N>(out)) {
        softmax_long<threads, 1, log>(out, x, width, stride);
    } else if constexpr (held) {
        softmax_held<threads, log>(out, x, (int)width);
    } else {
        softmax_long<threads, smaller(N, 8), log>(out, x, width, stride);
    }
}

// Columns side by side, COLUMNS of a block, each shared by SHARERS threads.
constexpr int SHARERS = BLOCK / COLUMNS;

template <bool log, class T>
PROPOLIS_FN void softmax_columns(T* out, const T* x, i64 columns, i64 length, i64 stride,
                                 i64 out_stride, const Strided2& s) {
    typedef Compute<T> C;
    __shared__ C max_of[SHARERS][COLUMNS];
    __shared__ C sum_of[SHARERS][COLUMNS];
    const int lane = (int)thread_x() % COLUMNS;
    const int sharer = (int)thread_x() / COLUMNS;
    for (i64 first = (i64)block_x() * COLUMNS; first < columns;
         first += (i64)blocks_x() * COLUMNS) {
        const i64 column = first + lane;
        const bool there = column < columns;
        const Offsets<2> at = locate(again(s), there ? column : 0);
        const T* from = x + at.at[0];
        Sums<C> sums = {(C)-PROPOLIS_INF, 0};
        if (there) {
#pragma unroll 2
            for (i64 j = sharer; j < length; j += SHARERS) {
                const C value = wide(from[j * stride]);
                include<1>(sums, &value);
            }
        }
        __syncthreads();  // the columns before are read
        max_of[sharer][lane] = sums.max;
        sum_of[sharer][lane] = sums.sum;
        __syncthreads();
        C max = (C)-PROPOLIS_INF, sum = 0;
        for (int k = 0; k < SHARERS; ++k) {
            max = max_of[k][lane] > max ? max_of[k][lane] : max;
        }
        for (int k = 0; k < SHARERS; ++k) {
            sum += rescaled(Sums<C>{max_of[k][lane], sum_of[k][lane]}, max);
        }
        const auto f = Finish<log, C>::of(max, sum);
        if (!there) continue;
        T* to = out + at.at[1];
#pragma unroll 2
        for (i64 j = sharer; j < length; j += SHARERS) {
            to[j * out_stride] = narrow<T>(finish(f, wide(from[j * stride])));
        }
    }
}

#define ROWS(op, log, T, group, block, threads, held)                                              \
    PROPOLIS_KERNEL_OF(block)                                                                      \
    softmax_##op##_##T##_##group(T* out, const T* x, i64 rows, i64 width, i64 stride, Strided s) { \
        for (i64 row = row_of_group<threads>(); row < rows; row += rows_at_once<threads>()) {      \
            const T* from = x + locate(again(s), row).at[0];                                       \
            softmax_row<threads, held, log>(out + row * width, from, width, stride);               \
        }                                                                                          \
    }

#define SOFTMAX(op, log, T)                                                                   \
    ROWS(op, log, T, warp, BLOCK, PROPOLIS_WARP, true)                                        \
    ROWS(op, log, T, block, BLOCK, BLOCK, true)                                               \
    ROWS(op, log, T, wide, WIDE, WIDE, true)                                                  \
    ROWS(op, log, T, long, WIDE, WIDE, false)                                                 \
    PROPOLIS_KERNEL softmax_##op##_##T##_columns(T* out, const T* x, i64 columns, i64 length, \
                                                 i64 stride, i64 out_stride, Strided2 s) {    \
        softmax_columns<log>(out, x, columns, length, stride, out_stride, s);                 \
    }
#define BOTH(T)                    \
    SOFTMAX(softmax, false, T)     \
    SOFTMAX(log_softmax, true, T)
BOTH(f64)
BOTH(f32)
BOTH(f16)
BOTH(bf16)
BOTH(f8e4m3)
BOTH(f8e5m2)
