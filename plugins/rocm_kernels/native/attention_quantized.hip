// Attention of keys and values in blocks, or of fewer bits than queries, as a cache keeps them: the
// kernels of attention.hip, for which they become numbers as they are fetched.
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

// Of queries of T, and what is kept: its name and its type.
#define DECODE(T, name, lanes, heads, kept, K)                                               \
    PROPOLIS_KERNEL_TWICE(DECODE_THREADS) attention_quantized_##name##lanes##_##T##_##kept(     \
        ATTENTION_ARGUMENTS(T, K)) {                                                         \
        decode<lanes, AHEAD, heads, true>(ATTENTION(T, K), shape);                               \
    }
#define PREFILL(T, columns, kept, K)                                                         \
    PROPOLIS_KERNEL attention_quantized_prefill##columns##_##T##_##kept(                     \
        ATTENTION_ARGUMENTS(T, K)) {                                                         \
        prefill<columns>(ATTENTION(T, K), shape);                                            \
    }
#define KERNELS(T, kept, K)                                                                  \
    DECODE(T, decode, 8, 1, kept, K)                                                         \
    DECODE(T, decode, 16, 1, kept, K)                                                        \
    DECODE(T, decode, 32, 1, kept, K)                                                        \
    DECODE(T, grouped, 8, GROUP, kept, K)                                                    \
    DECODE(T, grouped, 16, GROUP, kept, K)                                                   \
    DECODE(T, grouped, 32, GROUP, kept, K)                                                   \
    PREFILL(T, 1, kept, K)                                                                   \
    PREFILL(T, 2, kept, K)                                                                   \
    PREFILL(T, 4, kept, K)
KERNELS(f32, q8_0, InBlocks<Q8_0>)
KERNELS(f16, q8_0, InBlocks<Q8_0>)
KERNELS(bf16, q8_0, InBlocks<Q8_0>)
KERNELS(f32, f16, f16)
KERNELS(f32, bf16, bf16)
