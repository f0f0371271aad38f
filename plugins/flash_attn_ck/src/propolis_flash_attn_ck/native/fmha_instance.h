// The forward kernel of Composable Kernel that an instance is, chosen by what the builder defines.
#pragma once

#include "ck_tile/core.hpp"
#include "ck_tile/ops/epilogue.hpp"
#include "ck_tile/ops/fmha.hpp"

namespace propolis {
// Queries of a block, keys at once, depth of a product; values at once, depth, the head's elements.
#if FMHA_HEAD_DIM == 64
using Tile = ck_tile::sequence<FMHA_TILE, 64, 32, 64, 32, 64>;
#else
using Tile = ck_tile::sequence<FMHA_TILE, 128, 32, FMHA_HEAD_DIM, 32, FMHA_HEAD_DIM>;
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
using Pipeline = ck_tile::BlockFmhaPipelineQRKSVSAsync<Problem>;
using Epilogue = ck_tile::Default2DEpilogue<
    ck_tile::Default2DEpilogueProblem<float, FMHA_DTYPE, PADDED, PADDED>>;
using Kernel = ck_tile::FmhaFwdKernel<Pipeline, Epilogue>;
}  // namespace propolis
