// One of Composable Kernel's forward kernels behind our ABI: its own arguments, whose layout changes
// from release to release, are made here, by the names of their fields, on the device.
#include "fmha_instance.h"
#include "propolis_fmha.h"

using Kernel = propolis::Kernel;

static_assert(Kernel::kBlockSize == FMHA_BLOCK, "Python launches other blocks");
static_assert(Kernel::FmhaPipeline::kM0 == FMHA_TILE, "Python launches another grid");
static_assert(Kernel::FmhaPipeline::kN1 == FMHA_VALUES, "Python launches another grid");
static_assert(!Kernel::kIsGroupMode && Kernel::kHasMask && Kernel::kStoreLSE, "another instance");

template <class T>
__device__ inline T* at(T* base, int64_t index, int64_t elements, int size) {
    return (T*)((char*)base + index * elements * size);
}

// Arguments of a batch of one, found by 64-bit addresses: the block's own sequence, and of its values
// the elements from `element` on.
__device__ inline Kernel::Kargs arguments_of(const propolis_fmha_args& a,
                                             const propolis_fmha_sequence& s, int32_t index,
                                             int32_t element) {
    constexpr int size = sizeof(FMHA_DTYPE);
    const int64_t own = a.seqstart_q ? 0 : index;  // of the dimension that ragged batches lack
    Kernel::Kargs k{};
    k.q_ptr = at((char*)a.q + (own * a.stride_q[0]) * size, s.first, a.stride_q[2], size);
    k.o_ptr = at((char*)a.o + (own * a.stride_o[0] + element) * size, s.first, a.stride_o[2], size);
    k.k_ptr = at((char*)a.k, index, a.stride_k[0], size);
    k.v_ptr = at((char*)a.v + element * size, index, a.stride_v[0], size);
    k.lse_ptr = (float*)a.lse + own * a.stride_lse[0] + s.first;
    k.seqlen_q = s.queries;
    k.seqlen_k = s.keys;
    k.hdim_q = a.hdim_q;
    k.hdim_v = a.hdim_v - element < FMHA_VALUES ? a.hdim_v - element : FMHA_VALUES;
    k.num_head_q = a.heads_q;
    k.nhead_ratio_qk = a.heads_q / a.heads_k;
    k.scale_s = a.scale * 1.4426950408889634f;  // exponentials are of base 2
    k.stride_q = a.stride_q[2];
    k.stride_k = a.stride_k[2];
    k.stride_v = a.stride_v[2];
    k.stride_o = a.stride_o[2];
    k.nhead_stride_q = a.stride_q[1];
    k.nhead_stride_k = a.stride_k[1];
    k.nhead_stride_v = a.stride_v[1];
    k.nhead_stride_o = a.stride_o[1];
    k.nhead_stride_lse = a.stride_lse[1];
    k.window_size_left = a.window_left;
    k.window_size_right = a.window_right;
    k.mask_type = (ck_tile::GenericAttentionMaskEnum)a.mask_type;
#if FMHA_SOFTCAP
    k.logits_soft_cap = a.softcap;
    k.logits_soft_cap_rcp = 1.f / a.softcap;
#endif
    return k;
}

extern "C" __global__ void __launch_bounds__(Kernel::kBlockSize, Kernel::kBlockPerCu)
    FMHA_NAME(propolis_fmha_args a) {
#if defined(__HIP_DEVICE_COMPILE__)
    const propolis_fmha_part part = propolis_fmha_part_at(a);
    const int32_t index = __builtin_amdgcn_readfirstlane(part.sequence);
    const int32_t element = __builtin_amdgcn_readfirstlane(part.element);
    const propolis_fmha_sequence s = propolis_fmha_sequence_at(a, index);
    // With masks the last tiles come first, as they have the most to do.
    const int32_t tile = (int32_t)gridDim.y - 1 - (int32_t)blockIdx.y;
    if (tile * FMHA_TILE >= s.queries) return;
    Kernel{}(arguments_of(a, s, index, element));
#endif
}
