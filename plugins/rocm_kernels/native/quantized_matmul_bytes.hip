// Products of up to 16 rows of activations with weights in any block format, in integers on matrix instructions, and
// the rounding of such rows.
#include "propolis_few_bytes.h"

PROPOLIS_KERNEL quantized_matmul_bytes_round(u32* out, const f32* x, i64 m, i64 depth, i64 chunks, i64 rows) {
    round_rows(out, x, m, depth, chunks, (int)rows);
}

#define KERNEL(rows, name)                                                                        \
    PROPOLIS_KERNEL_TWICE(BLOCK)                                                                  \
    quantized_matmul_bytes_rows##rows##_##name(f32* out, const u32* x, const u8* w, i64 m, i64 n, \
                                               i64 depth, i64 row, i64 pieces)
#if PROPOLIS_FRAGMENTS
#define BYTES(rows, name, Format)                                            \
    KERNEL(rows, name) {                                                     \
        product_of_bytes<Format, rows>(out, x, w, m, n, depth, row, pieces); \
    }
#else
#define BYTES(rows, name, Format)                                                            \
    KERNEL(rows, name) {                                                                     \
        (void)out, (void)x, (void)w, (void)m, (void)n, (void)depth, (void)row, (void)pieces; \
        __builtin_trap();                                                                    \
    }
#endif
#define EACH(name, Format)  \
    BYTES(4, name, Format)  \
    BYTES(8, name, Format)  \
    BYTES(16, name, Format)
PROPOLIS_EACH_FORMAT(EACH)
