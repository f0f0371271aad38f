// Attention of keys and values in blocks, as a quantised cache holds them: the kernels of
// attention.hip, for which blocks become numbers as they are fetched.
#include "propolis_attention_decode.h"
#include "propolis_attention_prefill.h"
#include "propolis_blocks.h"

// A byte of blocks of a format: pointers and strides are counted in bytes.
template <class Format>
struct InBlocks {
    u8 byte;
};
template <class Format>
struct ComputeOf<InBlocks<Format>> {
    typedef f32 type;
    static constexpr bool is_float = true;
};

template <class Format>
PROPOLIS_FN void load_kept(const InBlocks<Format>* row, i64 element, f32 (&run)[RUN]) {
    const u32 from = (u32)element;
    const u8* block = (const u8*)row + from / Format::SIZE * Format::BYTES;
    Weights<f32> w;
    Format::load(block, (int)(from % Format::SIZE / RUN), w);
    dequantized<Format>(w, run);
}

#define DECODE(T, name, lanes, heads, format, Format)                                        \
    PROPOLIS_KERNEL_TWICE(DECODE_THREADS) attention_quantized_##name##lanes##_##T##_##format(   \
        ATTENTION_ARGUMENTS(T, InBlocks<Format>)) {                                          \
        decode<lanes, 2, heads, true>(ATTENTION(T, InBlocks<Format>), shape);                \
    }
#define PREFILL(T, columns, format, Format)                                                  \
    PROPOLIS_KERNEL attention_quantized_prefill##columns##_##T##_##format(                   \
        ATTENTION_ARGUMENTS(T, InBlocks<Format>)) {                                          \
        prefill<columns>(ATTENTION(T, InBlocks<Format>), shape);                             \
    }
#define KERNELS(T, format, Format)                                                           \
    DECODE(T, decode, 8, 1, format, Format)                                                  \
    DECODE(T, decode, 16, 1, format, Format)                                                 \
    DECODE(T, decode, 32, 1, format, Format)                                                 \
    DECODE(T, grouped, 8, GROUP, format, Format)                                             \
    DECODE(T, grouped, 16, GROUP, format, Format)                                            \
    DECODE(T, grouped, 32, GROUP, format, Format)                                            \
    PREFILL(T, 1, format, Format)                                                            \
    PREFILL(T, 2, format, Format)                                                            \
    PREFILL(T, 4, format, Format)
KERNELS(f32, q8_0, Q8_0)
KERNELS(f16, q8_0, Q8_0)
KERNELS(bf16, q8_0, Q8_0)
