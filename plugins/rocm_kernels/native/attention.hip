// Attention: one query at a time, as when decoding, and many at once.
#include "propolis_attention_decode.h"
#include "propolis_attention_prefill.h"

#define DECODE(T, name, lanes, heads)                                                           \
    PROPOLIS_KERNEL_TWICE(DECODE_THREADS) attention_##name##lanes##_##T(ATTENTION_ARGUMENTS(T, T)) { \
        decode<lanes, AHEAD, heads, true>(ATTENTION(T, T), shape);                              \
    }
// Any strides, any number of elements up to MAX_DIM.
#define ANY(T)                                                                                  \
    PROPOLIS_KERNEL_OF(DECODE_THREADS) attention_any_##T(ATTENTION_ARGUMENTS(T, T)) {           \
        decode<MAX_DIM / RUN, 1, 1, false>(ATTENTION(T, T), shape);                             \
    }
// And up to WIDEST: of f64 there are too few registers.
#define WIDE(T)                                                                                 \
    PROPOLIS_KERNEL_OF(DECODE_THREADS) attention_wide_##T(ATTENTION_ARGUMENTS(T, T)) {          \
        decode<MAX_DIM / RUN, 1, 1, false, WIDEST / MAX_DIM>(ATTENTION(T, T), shape);           \
    }
#define DECODES(T)                 \
    DECODE(T, decode, 8, 1)        \
    DECODE(T, decode, 16, 1)       \
    DECODE(T, decode, 32, 1)       \
    DECODE(T, grouped, 8, GROUP)   \
    DECODE(T, grouped, 16, GROUP)  \
    DECODE(T, grouped, 32, GROUP)  \
    ANY(T)                         \
    WIDE(T)
DECODES(f32)
DECODES(f16)
DECODES(bf16)
ANY(f8e4m3)
WIDE(f8e4m3)
ANY(f8e5m2)
WIDE(f8e5m2)
ANY(f64)

#define PREFILL(T, columns)                                                                \
    PROPOLIS_KERNEL attention_prefill##columns##_##T(ATTENTION_ARGUMENTS(T, T)) {          \
        prefill<columns>(ATTENTION(T, T), shape);                                          \
    }
// Of values up to WIDEST.
#define PREFILL_WIDE(T)                                                                    \
    PROPOLIS_KERNEL attention_prefillwide_##T(ATTENTION_ARGUMENTS(T, T)) {                 \
        prefill<MAX_DIM / SIDE, true>(ATTENTION(T, T), shape);                             \
    }
#define PREFILLS(T) PREFILL(T, 1) PREFILL(T, 2) PREFILL(T, 4) PREFILL_WIDE(T)
PREFILLS(f32)
PREFILLS(f16)
PREFILLS(bf16)
