// Values of the GGUF block formats.  Semantics: core's propolis/ops/quantized.py and indexing.py.
// Values are f32; other dtypes are rounded from that, once.
#include "propolis_blocks.h"
#include "propolis_convert.h"
#include "propolis_elementwise.h"

template <class T>
PROPOLIS_FN void store_values(T* to, const f32 (&run)[RUN], bool packed) {
    constexpr int N = RUN_PACK<T>;
#pragma unroll
    for (int first = 0; first < RUN; first += N) {
        Pack<T, N> pack;
#pragma unroll
        for (int k = 0; k < N; ++k) pack.at[k] = convert<T>(run[first + k]);
        if (packed) {
            store_pack<N>(to + first, pack);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) to[first + k] = pack.at[k];
        }
    }
}

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

// One of the dtypes of ids, which the host numbers; -1 where it is masked: all ones, or all but
// the sign.
PROPOLIS_FN i64 id_at(const void* ids, i64 i, int kind) {
    switch (kind) {
        case 0: {
            const u8 id = ((const u8*)ids)[i];
            return id == 0xff ? -1 : id;
        }
        case 1: {
            const i16 id = ((const i16*)ids)[i];
            return id == 0x7fff ? -1 : id;
        }
        case 2: {
            const i32 id = ((const i32*)ids)[i];
            return id == 0x7fffffff ? -1 : id;
        }
        case 3: {
            const u32 id = ((const u32*)ids)[i];
            return id == 0xffffffff ? -1 : (i64)id;
        }
        default:
            return ((const i64*)ids)[i];
    }
}

// Rows of a table; zeros for what is masked or outside.  `s` walks the ids.
template <class Format, class T>
PROPOLIS_FN void embedding(T* out, const void* ids, const u8* table, i64 n, i64 rows, i64 row_bytes,
                           i64 width, int kind, const Strided& s) {
    constexpr int RUNS = Format::SIZE / RUN;
    const bool packed = aligned<RUN_PACK<T>>(out);
    const i64 runs = width / RUN;
    const Span span = span_of(1);
    for (i64 i = span.first; i < n * runs; i += span.step) {
        const i64 at = i / runs;
        const i64 run = i - at * runs;
        const i64 id = id_at(ids, locate(s, at).at[0], kind);
        f32 values[RUN] = {};
        if (id >= 0 && id < rows) {
            const u8* block = table + id * row_bytes + run / RUNS * Format::BYTES;
            Weights<f32> w;
            Format::load(block, (int)(run % RUNS), w);
            dequantized<Format>(w, values);
        }
        store_values(out + i * RUN, values, packed);
    }
}

#define VALUES(name, Format, T)                                                                \
    PROPOLIS_KERNEL quantized_dequantize_##name##_##T(T* out, const u8* x, i64 runs, Strided s) { \
        dequantize<Format>(out, x, runs, s);                                                   \
    }                                                                                          \
    PROPOLIS_KERNEL quantized_embedding_##name##_##T(T* out, const void* ids, const u8* table, \
                                                     i64 n, i64 rows, i64 row_bytes, i64 width, \
                                                     i64 kind, Strided s) {                    \
        embedding<Format>(out, ids, table, n, rows, row_bytes, width, (int)kind, s);           \
    }
#define FORMAT(name, Format)    \
    VALUES(name, Format, f32)   \
    VALUES(name, Format, f16)   \
    VALUES(name, Format, bf16)  \
    VALUES(name, Format, f8e4m3) \
    VALUES(name, Format, f64)
PROPOLIS_EACH_FORMAT(FORMAT)
