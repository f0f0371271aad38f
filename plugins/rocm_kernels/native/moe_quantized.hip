// Mixtures of experts, with weights in the GGUF block formats.  Semantics: core's propolis/ops/moe.py;
// sums are in f32, of f64 in f64.  Where pairs are few and weights are all that counts there is a
// kernel for each format and none for each dtype of activations; in tiles it is the other way round.
#include "propolis_experts.h"
#include "propolis_kinds.h"
#include "propolis_qmatmul.h"

#define TILES(T)                                                                                 \
    PROPOLIS_KERNEL moe_quantized_tile64_##T(T* out, const T* x, const u8* w, const i32* order,  \
                                             const i32* starts, ExpertShape p, i32 format) {     \
        experts_in_tiles<64>(out, x, Grouped{order, starts}, p, [&](i32 expert) {                \
            return AnyWeights{w + expert * p.w_expert, p.n, p.depth, p.w_row, format};           \
        });                                                                                      \
    }
TILES(f64)
TILES(f32)
TILES(f16)
TILES(bf16)
TILES(f8e4m3)
TILES(f8e5m2)

PROPOLIS_FN void load_kind(const u8* x, i32 kind, i64 at, f32 (&run)[RUN]) {
    switch (kind) {
        case KIND_F8E4M3:
            load_run((const f8e4m3*)x + at, run);
            break;
        case KIND_F8E5M2:
            load_run((const f8e5m2*)x + at, run);
            break;
        case KIND_BF16:
            load_run((const bf16*)x + at, run);
            break;
        case KIND_F16:
            load_run((const f16*)x + at, run);
            break;
        default:
            load_run((const f32*)x + at, run);
    }
}

#define ROWS(name, Format)                                                                       \
    PROPOLIS_KERNEL moe_quantized_rows4_##name(u8* out, const u8* x, const u8* w,                \
                                               const i32* order, const i32* starts,              \
                                               ExpertShape p, i64 lanes, i32 kind) {             \
        experts_of_rows<f32>(                                                                    \
            Grouped{order, starts}, p,                                                           \
            [&](i32 expert) {                                                                    \
                return BlockWeights<Format>{w + expert * p.w_expert, p.n, p.depth, p.w_row};     \
            },                                                                                   \
            (int)lanes, [&](i64 at, f32(&run)[RUN]) { load_kind(x, kind, at, run); },            \
            [&](i64 at, f32 value) { store_f32(out, kind, at, value); });                        \
    }
PROPOLIS_EACH_FORMAT(ROWS)
