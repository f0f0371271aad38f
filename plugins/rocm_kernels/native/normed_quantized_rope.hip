// Products of the norm of a sum of two rows with weights in the block formats, whose first heads are rotated, and
// the last ones kept where there is a cache.
#include "propolis_normed.h"

#define OF_TURNED(name, Format)                                                                               \
    PROPOLIS_KERNEL_OF(THREADS)                                                                            \
    normed_quantized_rope_##name(f32* total, f32* out, const f32* x, const f32* residual, const f32* weight,  \
                                 f32 eps, const u8* w, const i32* position, const f32* cos, const f32* sin,   \
                                 void* cache, const i32* slot, i64 n, i64 depth, i64 row, i64 lanes,          \
                                 i64 threads, i64 rows, i64 cos_row, i64 sin_row, i64 slot_stride,            \
                                 i64 head_stride, i64 capacity, i32 pairs, i32 dim, i32 heads,                \
                                 i32 interleaved, i32 queries, i32 bits) {                                    \
        const Turn turn{position, cos, sin, rows, cos_row, sin_row, pairs, dim, heads, interleaved != 0};     \
        const Kept kept{cache, slot, slot_stride, head_stride, capacity, queries, bits};                      \
        product_of_turned<Rounded<Step<Format>>>(NormedRow<f32>{total, x, residual, weight, eps}, out, w, n,  \
                                                 depth, row, turn, kept, (int)lanes, (int)threads);           \
    }

PROPOLIS_EACH_FORMAT(OF_TURNED)
