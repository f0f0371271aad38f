// The forward kernel of Composable Kernel that an instance is, chosen by what the builder defines.
#pragma once

#include "ck_tile/core.hpp"
#include "ck_tile/ops/epilogue.hpp"
#include "ck_tile/ops/fmha.hpp"

namespace propolis {
// Queries of a block, keys at once, depth of a product; values at once, depth, the head's elements.
#if FMHA_HEAD_DIM == 64
using Tile = ck_tile::sequence<FMHA_TILE, 64, 32, 64, 32, 64>;
#elif FMHA_HEAD_DIM == 128 && !FMHA_SOFTCAP
using Tile = ck_tile::sequence<FMHA_TILE, 128, 32, 128, 32, 128>;
#elif FMHA_HEAD_DIM == 128  // with 128 keys at once, registers would be spilt to memory
using Tile = ck_tile::sequence<FMHA_TILE, 64, 32, 128, 32, 128>;
#else
using Tile = ck_tile::sequence<FMHA_TILE, 64, 32, FMHA_VALUES, 32, FMHA_HEAD_DIM>;
#endif
using Waves = ck_tile::sequence<4, 1, 1>;
using Matrix = ck_tile::sequence<32, 32, 16>;
using Shape = ck_tile::TileFmhaShape<Tile, Waves, Matrix, Waves, Matrix, true>;

constexpr bool PADDED = true;  // the asynchronous pipeline takes any length, and shorter heads
constexpr bool BIAS_GRADIENT = false, LSE = true, DROPOUT = false, FP8_SCALES = false;
using Traits =
    ck_tile::TileFmhaTraits<PADDED, PADDED, PADDED, PADDED, FMHA_SOFTCAP,
                            ck_tile::BlockAttentionBiasEnum::NO_BIAS, BIAS_GRADIENT, LSE, DROPOUT,
                            FP8_SCALES, -1, false>;
using Variant =
    ck_tile::ComposedAttention<FMHA_SOFTCAP * ck_tile::LOGITS_SOFT_CAP, CK_TILE_FMHA_FWD_FAST_EXP2>;
using Mask = ck_tile::SimplifiedGenericAttentionMask<true>;
using Problem =
    ck_tile::BlockFmhaPipelineProblem<FMHA_DTYPE, FMHA_DTYPE, FMHA_DTYPE, float, float, FMHA_DTYPE,
                                      uint8_t, float, FMHA_DTYPE, float, FMHA_DTYPE, Shape, false,
                                      Variant, Mask, Traits>;

// Keys and values take turns in three buffers.  The first values are stored while slower waves still
// multiply the last keys, with no barrier between: those two must not share a buffer.  For the eight
// steps over keys and two over values of wide heads Composable Kernel has them share; here they do not.
struct Policy : ck_tile::BlockFmhaPipelineQRKSVSAsyncDefaultPolicy {
    template <class P>
    CK_TILE_HOST_DEVICE static constexpr auto GetLdsBufferSequence() {
        if constexpr (FMHA_HEAD_DIM == 256)
            return ck_tile::sequence<1, 2, 0, 1, 2, 0, 1, 2, 1, 0>{};
        else
            return ck_tile::BlockFmhaPipelineQRKSVSAsyncDefaultPolicy::GetLdsBufferSequence<P>();
    }
};
constexpr int KEY_STEPS = Shape::kQKHeaddim / Shape::kK0;
constexpr auto BUFFERS = Policy::GetLdsBufferSequence<Problem>();
static_assert(BUFFERS.size() == KEY_STEPS + Shape::kN0 / Shape::kK1, "another number of steps");
static_assert(BUFFERS.at(ck_tile::number<KEY_STEPS - 1>{}) != BUFFERS.at(ck_tile::number<KEY_STEPS>{}),
              "values would overwrite keys that are still read");

using Pipeline = ck_tile::BlockFmhaPipelineQRKSVSAsync<Problem, Policy>;
using Epilogue = ck_tile::Default2DEpilogue<
    ck_tile::Default2DEpilogueProblem<float, FMHA_DTYPE, PADDED, PADDED>>;
using Kernel = ck_tile::FmhaFwdKernel<Pipeline, Epilogue>;
}  // namespace propolis
