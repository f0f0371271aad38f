// Normalisation of rows.  Semantics: core's propolis/ops/norm.py.  A row is read once and kept in
// registers, by a warp, a block, or a block of 1024 threads; longer ones are read again.
#include "propolis_rows.h"

enum Kind { RMS, ADD_RMS, LAYER };

// One row; `residual` and `total` are ADD_RMS's, `bias` is LAYER's and may be null.
template <class T>
struct Row {
    T* out;
    T* total;
    const T* x;
    const T* residual;
    const T* weight;
    const T* bias;
    i64 width;
    i64 stride;
    i64 residual_stride;
    i64 weight_stride;
    i64 bias_stride;
    Compute<T> eps;
};

template <int N, Kind kind, class T>
PROPOLIS_FN bool is_packed(const Row<T>& r) {
    bool packed = packed_row<N>(r.x, r.width, r.stride) && aligned<N>(r.out) &&
                  packed_row<N>(r.weight, r.width, r.weight_stride);
    if constexpr (kind == ADD_RMS) {
        packed = packed && aligned<N>(r.total) &&
                 packed_row<N>(r.residual, r.width, r.residual_stride);
    }
    if constexpr (kind == LAYER) {
        packed = packed && (!r.bias || packed_row<N>(r.bias, r.width, r.bias_stride));
    }
    return packed;
}

template <class C>
PROPOLIS_FN C inverse_root(C mean_square, C eps) {
    return 1 / math::sqrt(mean_square + eps);
}

// A pack of the result.
template <int N, Kind kind, class T, class C>
PROPOLIS_FN void write(const Row<T>& r, i64 i, const C* values, Pack<T, N> weight, C scale) {
    Pack<T, N> result, bias;
    if constexpr (kind == LAYER) {
        if (r.bias) bias = load_at<N>(r.bias, i, r.bias_stride);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
        C y = values[k] * scale * wide(weight.at[k]);
        if constexpr (kind == LAYER) {
            if (r.bias) y += wide(bias.at[k]);
        }
        result.at[k] = narrow<T>(y);
    }
    store_pack<N>(r.out + i, result);
}

// x, and what was added to it.
template <int N, Kind kind, class T>
PROPOLIS_FN Pack<T, N> total_of(const Row<T>& r, i64 i, Pack<T, N> x) {
    if constexpr (kind == ADD_RMS) {
        const Pack<T, N> other = load_at<N>(r.residual, i, r.residual_stride);
#pragma unroll
        for (int k = 0; k < N; ++k) x.at[k] = narrow<T>(wide(x.at[k]) + wide(other.at[k]));
        store_pack<N>(r.total + i, x);
    }
    return x;
}

// Rows of whole packs that the registers of the group hold.
template <int threads, Kind kind, class T>
PROPOLIS_FN void norm_held(const Row<T>& r) {
    typedef Compute<T> C;
    constexpr int N = PACK_BYTES / sizeof(T);
    constexpr int count = HELD<threads, T>;
    C values[count] = {};
    each_held<threads, T>((int)r.width, [&](int i, int p) {
        const Pack<T, N> pack = load_pack<N>(r.x + i);
#pragma unroll
        for (int k = 0; k < N; ++k) values[p * N + k] = wide(pack.at[k]);
    });
    if constexpr (kind == ADD_RMS) {
        each_held<threads, T>((int)r.width, [&](int i, int p) {
            const Pack<T, N> other = load_pack<N>(r.residual + i);
            Pack<T, N> total;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                total.at[k] = narrow<T>(values[p * N + k] + wide(other.at[k]));
                values[p * N + k] = wide(total.at[k]);
            }
            store_pack<N>(r.total + i, total);
        });
    }
    if constexpr (kind == LAYER) {
        C sum = 0;
#pragma unroll
        for (int k = 0; k < count; ++k) sum += values[k];
        const C mean = group_sum<threads>(sum) / (C)r.width;
        each_held<threads, T>((int)r.width, [&](int, int p) {
#pragma unroll
            for (int k = 0; k < N; ++k) values[p * N + k] -= mean;
        });
    }
    C squares = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) squares += values[k] * values[k];
    const C scale = inverse_root(group_sum<threads>(squares) / (C)r.width, r.eps);
    each_held<threads, T>((int)r.width, [&](int i, int p) {
        write<N, kind>(r, i, values + p * N, load_pack<N>(r.weight + i), scale);
    });
}

template <int threads, int N, Kind kind, class T>
PROPOLIS_FN void norm_long(const Row<T>& r) {
    typedef Compute<T> C;
    C sum = 0, squares = 0, mean = 0;
    along_row<threads, N>(r.width, [&](i64 i) {
        const auto pack = total_of<N, kind>(r, i, load_at<N>(r.x, i, r.stride));
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const C v = wide(pack.at[k]);
            sum += v;
            squares += v * v;
        }
    });
    // The sums are rounded to the dtype, and read as such; each thread reads what it wrote.
    const T* x = kind == ADD_RMS ? r.total : r.x;
    const i64 stride = kind == ADD_RMS ? 1 : r.stride;
    if constexpr (kind == LAYER) {
        mean = group_sum<threads>(sum) / (C)r.width;
        squares = 0;
        along_row<threads, N>(r.width, [&](i64 i) {
            const Pack<T, N> pack = load_at<N>(x, i, stride);
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const C v = wide(pack.at[k]) - mean;
                squares += v * v;
            }
        });
    }
    const C scale = inverse_root(group_sum<threads>(squares) / (C)r.width, r.eps);
    along_row<threads, N>(r.width, [&](i64 i) {
        const Pack<T, N> pack = load_at<N>(x, i, stride);
        const auto weight = load_at<N>(r.weight, i, r.weight_stride);
        C values[N];
#pragma unroll
        for (int k = 0; k < N; ++k) values[k] = wide(pack.at[k]) - mean;
        write<N, kind>(r, i, values, weight, scale);
    });
}

template <int threads, bool held, Kind kind, class T>
PROPOLIS_FN void norm_row(const Row<T>& r) {
    constexpr int N = PACK_BYTES / sizeof(T);
    if (!is_packed<N, kind>(r)) {
        norm_long<threads, 1, kind>(r);
    } else if constexpr (held) {
        norm_held<threads, kind>(r);
    } else {
        norm_long<threads, smaller(N, 4), kind>(r);
    }
}

#define EACH_ROW(threads) \
    for (i64 row = row_of_group<threads>(); row < rows; row += rows_at_once<threads>())

#define NORMS(T, group, block, threads, held)                                                    \
    PROPOLIS_KERNEL_OF(block)                                                                    \
    norm_rms_norm_##T##_##group(T* out, const T* x, const T* weight, i64 rows, i64 width,        \
                                i64 stride, i64 weight_stride, Compute<T> eps, Strided s) {      \
        EACH_ROW(threads) {                                                                      \
            norm_row<threads, held, RMS, T>({out + row * width, nullptr,                         \
                                             x + locate(again(s), row).at[0], nullptr, weight,   \
                                             nullptr, width, stride, 0, weight_stride, 0, eps}); \
        }                                                                                        \
    }                                                                                            \
    PROPOLIS_KERNEL_OF(block)                                                                    \
    norm_add_rms_norm_##T##_##group(T* total, T* out, const T* x, const T* residual,             \
                                    const T* weight, i64 rows, i64 width, i64 stride,            \
                                    i64 residual_stride, i64 weight_stride, Compute<T> eps,      \
                                    Strided2 s) {                                                \
        EACH_ROW(threads) {                                                                      \
            const Offsets<2> at = locate(again(s), row);                                         \
            norm_row<threads, held, ADD_RMS, T>({out + row * width, total + row * width,         \
                                                 x + at.at[0], residual + at.at[1], weight,      \
                                                 nullptr, width, stride, residual_stride,        \
                                                 weight_stride, 0, eps});                        \
        }                                                                                        \
    }                                                                                            \
    PROPOLIS_KERNEL_OF(block)                                                                    \
    norm_layer_norm_##T##_##group(T* out, const T* x, const T* weight, const T* bias, i64 rows,  \
                                  i64 width, i64 stride, i64 weight_stride, i64 bias_stride,     \
                                  Compute<T> eps, Strided s) {                                   \
        EACH_ROW(threads) {                                                                      \
            norm_row<threads, held, LAYER, T>({out + row * width, nullptr,                       \
                                               x + locate(again(s), row).at[0], nullptr, weight, \
                                               bias, width, stride, 0, weight_stride,            \
                                               bias_stride, eps});                               \
        }                                                                                        \
    }

#define ALL_NORMS(T)                           \
    NORMS(T, warp, BLOCK, PROPOLIS_WARP, true) \
    NORMS(T, block, BLOCK, BLOCK, true)        \
    NORMS(T, wide, WIDE, WIDE, true)           \
    NORMS(T, long, WIDE, WIDE, false)
ALL_NORMS(f64)
ALL_NORMS(f32)
ALL_NORMS(f16)
ALL_NORMS(bf16)
ALL_NORMS(f8e4m3)
ALL_NORMS(f8e5m2)
