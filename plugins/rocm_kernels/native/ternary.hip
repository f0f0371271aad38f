// Choice between two tensors.  Semantics: core's propolis/ops/ternary.py.  Elements are moved
// as they are, so one kernel serves all dtypes of a size.
#include "propolis_elementwise.h"

template <class C, class T>
PROPOLIS_FN void choose(i64 n, T* out, const C* condition, const T* a, const T* b) {
    constexpr int N = pack_of(larger(sizeof(C), sizeof(T)), false);
    const bool packed = aligned<N>(out) && aligned<N>(condition) && aligned<N>(a) && aligned<N>(b);
    const i64 packs = packed ? n / N : 0;
    const Span span = span_of(1);
    for (i64 i = span.first; i < packs; i += span.step) {
        const Pack<C, N> which = load_pack<N>(condition + i * N);
        const Pack<T, N> left = load_pack<N>(a + i * N);
        const Pack<T, N> right = load_pack<N>(b + i * N);
        Pack<T, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) result.at[k] = which.at[k] ? left.at[k] : right.at[k];
        store_pack<N>(out + i * N, result);
    }
    for (i64 i = packs * N + span.first; i < n; i += span.step) out[i] = condition[i] ? a[i] : b[i];
}

template <class C, class T>
PROPOLIS_FN void choose_strided(i64 n, T* out, const C* condition, const T* a, const T* b,
                                const Strided3& s) {
    constexpr int N = pack_of(larger(sizeof(C), sizeof(T)), false);
    const Span span = span_of(1);
    const int last = s.rank - 1;
    const i64 inner[3] = {s.strides[0][last], s.strides[1][last], s.strides[2][last]};
    if (s.run >= N && aligned<N>(out) && row_aligned<N>(condition, inner[0]) &&
        row_aligned<N>(a, inner[1]) && row_aligned<N>(b, inner[2])) {
        for (i64 i = span.first; i < n / N; i += span.step) {
            const Offsets<3> at = locate(s, i * N);
            const Pack<C, N> which = load_row<N>(condition + at.at[0], inner[0]);
            const Pack<T, N> left = load_row<N>(a + at.at[1], inner[1]);
            const Pack<T, N> right = load_row<N>(b + at.at[2], inner[2]);
            Pack<T, N> result;
#pragma unroll
            for (int k = 0; k < N; ++k) result.at[k] = which.at[k] ? left.at[k] : right.at[k];
            store_pack<N>(out + i * N, result);
        }
        return;
    }
    for (i64 i = span.first; i < n; i += span.step) {
        const Offsets<3> at = locate(s, i);
        out[i] = condition[at.at[0]] ? a[at.at[1]] : b[at.at[2]];
    }
}

#define KERNELS(c, C, t, T)                                                                       \
    PROPOLIS_KERNEL ternary_where_b##c##_b##t(T* out, const C* condition, const T* a, const T* b, \
                                              i64 n) {                                            \
        choose(n, out, condition, a, b);                                                          \
    }                                                                                             \
    PROPOLIS_KERNEL ternary_where_b##c##_b##t##_strided(T* out, const C* condition, const T* a,   \
                                                        const T* b, i64 n, Strided3 s) {          \
        choose_strided(n, out, condition, a, b, s);                                               \
    }
#define OF_CONDITION(c, C) \
    KERNELS(c, C, 1, u8)   \
    KERNELS(c, C, 2, u16)  \
    KERNELS(c, C, 4, u32)  \
    KERNELS(c, C, 8, u64)

OF_CONDITION(1, u8)
OF_CONDITION(2, u16)
OF_CONDITION(4, u32)
OF_CONDITION(8, u64)
