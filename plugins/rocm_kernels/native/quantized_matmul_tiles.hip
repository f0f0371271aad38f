// Products of activations, in tiles of up to 128 rows, rounded to bf16, with weights in any block format, and the
// sums of their parts.
#include "propolis_block_groups.h"

#if PROPOLIS_WGMMA
#define PRODUCT product_of_groups  // of rows as quantized_matmul_tiles_arrange has them
#else
#define PRODUCT product_of_blocks
#endif
#define KERNEL(KIND, rows, name)                                                                  \
    KIND quantized_matmul_tiles_rows##rows##_##name(f32* out, const bf16* x, const u8* w, i64 m,  \
                                                    i64 n, i64 depth, i64 x_row, i64 row,         \
                                                    i64 chunks, i64 first)
#define FRAGMENTS(KIND, rows, name, Format)                                                       \
    KERNEL(KIND, rows, name) {                                                                    \
        PRODUCT<Format, rows>(out, x, w, m, n, depth, x_row, row, chunks, first);       \
    }
#define ABSENT(KIND, rows, name, Format)                                                          \
    KERNEL(KIND, rows, name) {                                                                    \
        (void)out, (void)x, (void)w, (void)m, (void)n, (void)depth, (void)x_row, (void)row;       \
        (void)chunks, (void)first;                                                                \
        __builtin_trap();                                                                         \
    }
#if PROPOLIS_FRAGMENTS
#define SMALL FRAGMENTS
#else
#define SMALL ABSENT
#endif
// More sums than AMD's GPUs have registers, and LDS, for; the simulator's tests have it.
#if !defined(PROPOLIS_AMD)
#define LARGE FRAGMENTS
#else
#define LARGE ABSENT
#endif
#define EACH(name, Format)                                \
    SMALL(PROPOLIS_KERNEL_TWICE(BLOCK), 16, name, Format) \
    SMALL(PROPOLIS_KERNEL_TWICE(BLOCK), 32, name, Format) \
    SMALL(PROPOLIS_KERNEL_TWICE(BLOCK), 64, name, Format) \
    LARGE(PROPOLIS_KERNEL_OF_MATRICES, 128, name, Format)
PROPOLIS_EACH_FORMAT(EACH)

#define JOIN(count)                                                                                    \
    PROPOLIS_KERNEL quantized_matmul_tiles_join##count(f32* out, const f32* parts, i64 size, i64 all) { \
        join_parts<count>(out, parts, size, all);                                                      \
    }
JOIN(1)
JOIN(4)

PROPOLIS_KERNEL quantized_matmul_tiles_arrange(bf16* to, const f32* x, i64 m, i64 depth, i64 rows) {
#if !defined(PROPOLIS_AMD)
    arrange_rows(to, x, m, depth, rows);
#else
    (void)to, (void)x, (void)m, (void)depth, (void)rows;
    __builtin_trap();
#endif
}
