// The ABI of every instance: one structure, by value, a kernel's only argument.  Strides in elements.
// Python packs it by ARGUMENTS of _instances.py.
#pragma once

#if defined(__CUDACC_RTC__)  // the simulator's other flavour, without the C library
typedef int int32_t;
typedef long long int64_t;
typedef unsigned uint32_t;
typedef unsigned short uint16_t;
#else
#include <stdint.h>
#endif

struct propolis_fmha_args {
    const void *q, *k, *v;
    void *o, *lse;
    const void* bias;            // none yet
    const int32_t* seqstart_q;   // of ragged batches: where each sequence's queries begin, and the end
    const int32_t* seqstart_k;   // none yet
    const int32_t* seqlen_k;     // keys of each sequence; null for all
    int32_t batch, seqlen_q, seqlen_k_max, hdim_q, hdim_v, heads_q, heads_k;
    float scale, softcap;
    int32_t stride_q[3], stride_k[3], stride_v[3], stride_o[3], stride_bias[3];  // batch, head, row
    int32_t stride_lse[2];                                                       // batch, head
    int32_t window_left, window_right;  // keys seen on either side; negative: all
    int32_t mask_type;                  // 0 none, 2 aligned at the last key
};
static_assert(sizeof(propolis_fmha_args) == FMHA_SIZE, "propolis_fmha_args is not ARGUMENTS");

// What a block computes: a sequence, and the first of the (at most FMHA_VALUES) elements of its values.
struct propolis_fmha_part {
    int32_t sequence, element;
};

__device__ inline propolis_fmha_part propolis_fmha_part_at(const propolis_fmha_args& a) {
    if constexpr (FMHA_HEAD_DIM == FMHA_VALUES) return {(int32_t)blockIdx.z, 0};
    const int32_t parts = (a.hdim_v + FMHA_VALUES - 1) / FMHA_VALUES;
    const int32_t sequence = (int32_t)blockIdx.z / parts;
    return {sequence, ((int32_t)blockIdx.z - sequence * parts) * FMHA_VALUES};
}

// The sequence of a block: its queries, where they begin, and its keys.  Whatever the lengths say,
// memory outside the tensors is not touched.
struct propolis_fmha_sequence {
    int64_t first;
    int32_t queries, keys;
};

__device__ inline propolis_fmha_sequence propolis_fmha_sequence_at(const propolis_fmha_args& a,
                                                                   int32_t index) {
    propolis_fmha_sequence s{0, a.seqlen_q, a.seqlen_k_max};
    if (a.seqstart_q) {
        const int32_t begin = a.seqstart_q[index], end = a.seqstart_q[index + 1];
        const int32_t first = begin < 0 ? 0 : begin < a.seqlen_q ? begin : a.seqlen_q;
        const int32_t last = end < first ? first : end < a.seqlen_q ? end : a.seqlen_q;
        s.first = first;
        s.queries = last - first;
    }
    if (a.seqlen_k) {
        const int32_t told = a.seqlen_k[index];
        s.keys = told < 0 ? 0 : told < a.seqlen_k_max ? told : a.seqlen_k_max;
    }
    return s;
}
