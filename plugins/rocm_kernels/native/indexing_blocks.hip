// Rows of a table in a GGUF block format.  Semantics: core's propolis/ops/indexing.py.
#include "propolis_elementwise.h"
#include "propolis_ids.h"
#include "propolis_values.h"

// Rows of a table; zeros for what is masked or outside.  `s` walks the ids.
template <class Format, class T>
PROPOLIS_FN void embedding(T* out, const void* ids, const u8* table, i64 n, i64 rows, i64 row_bytes,
                           i64 width, i32 kind, const Strided& s) {
    constexpr int RUNS = Format::SIZE / RUN;
    const bool packed = aligned<RUN_PACK<T>>(out);
    const i64 runs = width / RUN;
    const Span span = span_of(1);
    for (i64 i = span.first; i < n * runs; i += span.step) {
        const i64 at = i / runs;
        const i64 run = i - at * runs;
        const i64 id = load_id(ids, kind, locate(s, at).at[0]);
        f32 values[RUN] = {};
        if (inside(id, rows)) {
            const u8* block = table + id * row_bytes + run / RUNS * Format::BYTES;
            Weights<f32> w;
            Format::load(block, (int)(run % RUNS), w);
            dequantized<Format>(w, values);
        }
        store_values(out + i * RUN, values, packed);
    }
}

#define EMBEDDING(name, Format, T)                                                               \
    PROPOLIS_KERNEL indexing_blocks_embedding_##name##_##T(                                      \
        T* out, const void* ids, const u8* table, i64 n, i64 rows, i64 row_bytes, i64 width,     \
        i32 kind, Strided s) {                                                                   \
        embedding<Format>(out, ids, table, n, rows, row_bytes, width, kind, s);                  \
    }
#define FORMAT(name, Format)        \
    EMBEDDING(name, Format, f32)    \
    EMBEDDING(name, Format, f16)    \
    EMBEDDING(name, Format, bf16)   \
    EMBEDDING(name, Format, f8e4m3) \
    EMBEDDING(name, Format, f8e5m2) \
    EMBEDDING(name, Format, f64)
PROPOLIS_EACH_FORMAT(FORMAT)
