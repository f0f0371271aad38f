// Attention of many queries of 16-bit numbers on matrix instructions, of heads of up to so many elements.
#include "propolis_flash.h"

#if PROPOLIS_FRAGMENTS
#define BODY(dims, T) flash<dims>(ATTENTION(T, T), shape);
#else
#define BODY(dims, T)                                                                        \
    (void)out, (void)lse, (void)q, (void)k, (void)v, (void)kv_len, (void)bias, (void)alibi;  \
    (void)q_start, (void)block_table, (void)scratch, (void)shape;                            \
    __builtin_trap();
#endif

#define FLASH(dims, T)                                                                      \
    PROPOLIS_KERNEL attention_matrix_flash##dims##_##T(ATTENTION_ARGUMENTS(T, T)) { BODY(dims, T) }
#define EACH(T) FLASH(48, T) FLASH(64, T) FLASH(80, T) FLASH(128, T) FLASH(256, T)
EACH(f16)
EACH(bf16)
