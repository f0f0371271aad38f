// The same ABI, grid and rules as Composable Kernel's, in plain arithmetic: what the simulator runs, so
// that packing, choice of kernel and launches are exercised where there are no matrix instructions.
#include "propolis_fmha.h"

#define INFINITE (__builtin_huge_valf())

__device__ inline float as_float(uint32_t bits) {
    union {
        uint32_t u;
        float f;
    } both;
    both.u = bits;
    return both.f;
}
__device__ inline uint32_t as_bits(float x) {
    union {
        float f;
        uint32_t u;
    } both;
    both.f = x;
    return both.u;
}

#if FMHA_BF16
__device__ inline float wide(uint16_t x) { return as_float((uint32_t)x << 16); }
__device__ inline uint16_t narrow(float x) {
    const uint32_t u = as_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#else
__device__ inline float wide(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    const uint32_t rest = x & 0x7fff;
    if (rest >= 0x7c00) return as_float(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    if (rest >= 0x0400) return as_float(sign | (rest + (112u << 10)) << 13);
    const float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}
__device__ inline uint16_t narrow(float x) {
    const uint32_t sign = as_bits(x) >> 16 & 0x8000;
    uint32_t u = as_bits(x) & 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000u) {  // the sum rounds at 2**-24, as the result must
        return (uint16_t)(sign | (as_bits(as_float(u) + 0.5f) - 0x3f000000u));
    }
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}
#endif

__device__ inline bool sees(const propolis_fmha_args& a, int32_t position, int32_t key) {
    if (a.mask_type == 0) return true;
    if (a.window_left >= 0 && key < position - a.window_left) return false;
    return a.window_right < 0 || key <= position + a.window_right;
}

__device__ inline float score_of(const propolis_fmha_args& a, const uint16_t* q,
                                 const uint16_t* k) {
    float score = 0;
    for (int32_t e = 0; e < a.hdim_q; ++e) score += wide(q[e]) * wide(k[e]);
    score *= a.scale;
#if FMHA_SOFTCAP
    score = a.softcap * tanhf(score / a.softcap);
#endif
    return score;
}

// A thread has a query: half of the block looks on, as the tile has half as many queries.
extern "C" __global__ void __launch_bounds__(FMHA_BLOCK) FMHA_NAME(propolis_fmha_args a) {
    const propolis_fmha_part part = propolis_fmha_part_at(a);
    const int32_t index = part.sequence, head = (int32_t)blockIdx.x;
    const propolis_fmha_sequence s = propolis_fmha_sequence_at(a, index);
    const int32_t query =
        ((int32_t)gridDim.y - 1 - (int32_t)blockIdx.y) * FMHA_TILE + (int32_t)threadIdx.x;
    if (threadIdx.x >= FMHA_TILE || query >= s.queries) return;
    const int64_t own = a.seqstart_q ? 0 : index;
    const int64_t row = s.first + query;
    const int64_t group = head / (a.heads_q / a.heads_k);
    const uint16_t* q = (const uint16_t*)a.q + own * a.stride_q[0] + head * (int64_t)a.stride_q[1] +
                        row * a.stride_q[2];
    const uint16_t* k = (const uint16_t*)a.k + index * (int64_t)a.stride_k[0] + group * a.stride_k[1];
    const uint16_t* v = (const uint16_t*)a.v + index * (int64_t)a.stride_v[0] +
                        group * a.stride_v[1] + part.element;
    uint16_t* o = (uint16_t*)a.o + own * a.stride_o[0] + head * (int64_t)a.stride_o[1] +
                  row * a.stride_o[2] + part.element;
    const int32_t left = a.hdim_v - part.element, elements = left < FMHA_VALUES ? left : FMHA_VALUES;
    const int32_t position = s.keys - s.queries + query;

    float top = -INFINITE;
    bool odd = false;  // a maximum passes NaN by
    for (int32_t j = 0; j < s.keys; ++j) {
        if (!sees(a, position, j)) continue;
        const float score = score_of(a, q, k + (int64_t)j * a.stride_k[2]);
        top = score > top ? score : top;
        odd = odd || score != score;
    }
    if (top == INFINITE) odd = true;  // less itself it is no number
    const float base = top == -INFINITE ? 0 : top;
    float total = odd ? __builtin_nanf("") : 0;
    float sums[FMHA_VALUES];
    for (int32_t e = 0; e < elements; ++e) sums[e] = 0;
    for (int32_t j = 0; j < s.keys; ++j) {
        if (!sees(a, position, j)) continue;
        const float score = score_of(a, q, k + (int64_t)j * a.stride_k[2]);
        // Not by exp of 0: fused with the scaling, the difference of large scores is their rounding.
        const float share = score == base ? 1 : expf(score - base);
        total += share;
        const float rounded = wide(narrow(share));  // as matrix instructions take it
        const uint16_t* value = v + (int64_t)j * a.stride_v[2];
        for (int32_t e = 0; e < elements; ++e) sums[e] += rounded * wide(value[e]);
    }
    const float scale = total == 0 ? 1 : 1 / total;
    for (int32_t e = 0; e < elements; ++e) o[e] = narrow(sums[e] * scale);
    float* lse = (float*)a.lse + own * a.stride_lse[0] + head * (int64_t)a.stride_lse[1] + row;
    *lse = total == 0 ? -INFINITE : logf(total) + base;
}
