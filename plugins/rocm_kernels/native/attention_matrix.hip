// Attention of many queries of 16-bit numbers on matrix instructions, of heads of up to so many elements.
#include "propolis_flash.h"

#define NO_BODY                                                                              \
    (void)out, (void)lse, (void)q, (void)k, (void)v, (void)kv_len, (void)bias, (void)alibi;  \
    (void)q_start, (void)block_table, (void)scratch, (void)shape;                            \
    __builtin_trap();
#if PROPOLIS_FRAGMENTS
#define BODY(dims, T) flash<dims, 1, WARPS>(ATTENTION(T, T), shape);
#else
#define BODY(dims, T) NO_BODY
#endif
// Heads of 64 on NVIDIA's: warps of twice the queries where these are many, blocks of half of them where they
// are few; ops_attention_matrix.py launches neither elsewhere.
#if defined(PROPOLIS_MMA)
#define PAIRS(T) flash<64, 2, WARPS / 2>(ATTENTION(T, T), shape);
#define HALVES(T) flash<64, 1, WARPS / 2>(ATTENTION(T, T), shape);
#else
#define PAIRS(T) NO_BODY
#define HALVES(T) NO_BODY
#endif

#define FLASH(dims, T)                                                                      \
    PROPOLIS_KERNEL_OF_MATRICES attention_matrix_flash##dims##_##T(ATTENTION_ARGUMENTS(T, T)) { BODY(dims, T) }
#define EACH(T)                                                                             \
    FLASH(48, T) FLASH(64, T) FLASH(80, T) FLASH(128, T) FLASH(256, T)                       \
    PROPOLIS_KERNEL_OF(BLOCK / 2) attention_matrix_pairs_##T(ATTENTION_ARGUMENTS(T, T)) { PAIRS(T) } \
    PROPOLIS_KERNEL_OF(BLOCK / 2) attention_matrix_halves_##T(ATTENTION_ARGUMENTS(T, T)) { HALVES(T) }
EACH(f16)
EACH(bf16)
