// Values of the GGUF block formats.  Semantics: core's propolis/ops/quantized.py.
#include "propolis_elementwise.h"
#include "propolis_values.h"

// Run i of the values, in row-major order; `s` walks blocks.
template <class Format, class T>
PROPOLIS_FN void dequantize(T* out, const u8* x, i64 runs, const Strided& s) {
    constexpr int RUNS = Format::SIZE / RUN;
    const bool packed = aligned<RUN_PACK<T>>(out);
    const Span span = span_of(1);
    for (i64 i = span.first; i < runs; i += span.step) {
        const i64 block = i / RUNS;
        Weights<f32> w;
        Format::load(x + locate(s, block).at[0] * Format::BYTES, (int)(i - block * RUNS), w);
        f32 values[RUN];
        dequantized<Format>(w, values);
        store_values(out + i * RUN, values, packed);
    }
}

#define DEQUANTIZE(name, Format, T)                                                                \
    PROPOLIS_KERNEL quantized_dequantize_##name##_##T(T* out, const u8* x, i64 runs, Strided s) { \
        dequantize<Format>(out, x, runs, s);                                                       \
    }
#define FORMAT(name, Format)         \
    DEQUANTIZE(name, Format, f32)    \
    DEQUANTIZE(name, Format, f16)    \
    DEQUANTIZE(name, Format, bf16)   \
    DEQUANTIZE(name, Format, f8e4m3) \
    DEQUANTIZE(name, Format, f8e5m2) \
    DEQUANTIZE(name, Format, f64)
PROPOLIS_EACH_FORMAT(FORMAT)
