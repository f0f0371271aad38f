// What the module calls.  Arrays are row-major where no strides are given; `threads` may share a call.
#pragma once

#include <span>

#include "simd.h"

namespace propolis {

enum class Kind : int { F32, F16, BF16 };

inline int size_of(Kind kind) { return kind == Kind::F32 ? 4 : 2; }

// Calls f(T{}) with the type of a kind.
template <class F>
PROPOLIS_INLINE void with_type(Kind kind, F&& f) {
    switch (kind) {
        case Kind::F32: return f(f32{});
        case Kind::F16: return f(f16{});
        case Kind::BF16: return f(bf16{});
    }
}

// -- weights in blocks ----------------------------------------------------------------------------

struct Format {
    const char* name;    // as core's dtype
    i64 block;           // elements
    i64 source;          // bytes of a block in a file
    i64 tile;            // bytes of sixteen blocks, repacked
    void (*put)(u8* tile, int row, const u8* blocks, i64 count);
    void (*get)(u8* blocks, const u8* tile, int row, i64 count);
    // Rows [m0, m1) of activations by rows [16 t0, 16 t1) of weights.
    void (*fast)(const struct Product&, i64 t0, i64 t1, i64 m0, i64 m1);
    void (*exact)(const struct Product&, i64 t0, i64 t1, i64 m0, i64 m1);
    void (*widen)(const u8* tile, i64 first, i64 count, bf16* to);
    // Up to sixteen rows of k elements, as they are before they are repacked; a null one is left out.
    void (*decode)(f32* out, const u8* const* rows, int count, i64 k);
    i32 excess;    // of the factors of bytes
    int grain;     // elements of a sum of activations
    bool words;    // activations are words: of each four the even ones, then the odd ones
};
std::span<const Format> formats_of_32();   // elements a block
std::span<const Format> formats_of_256();
const Format* format_named(const char* name);

// out (m, n) = x (m, k) @ w (n, k).T
struct Product {
    const Format* format;
    const u8* tiles;
    void* out;
    const void* x;
    Kind kind;
    i64 m, n, k;
    int threads;
    bool gated = false;  // out (m, n / 2), in f32: silu of the first half of columns times the second; `multiply_tiled` alone
    // What `multiply` makes of x: rounded to bytes, or f32.
    // In panels of rows, see activations.h; of each row:
    const i8* bytes = nullptr;      // 2 k: the lower ones, and the upper where there are some
    const f32* scales = nullptr;    // k / 32
    const i32* starts = nullptr;    // k / grain: what sums of bytes begin with
    const f32* sums = nullptr;      // k / grain: of activations
    const u8* finer = nullptr;      // k / 32: whether there are upper bytes
    const f32* wide = nullptr;      // (m, k)
};
void multiply(Product product, bool exact);
// Several of one format, kind, n, k and threads.
void multiply(std::span<Product> products, bool exact);

void repack(const Format&, u8* tiles, const u8* blocks, i64 n, i64 k, int threads);
void unpack(const Format&, u8* blocks, const u8* tiles, i64 n, i64 k, int threads);

// -- rows ------------------------------------------------------------------------------------------

// out = x / sqrt(mean(x ** 2) + eps) * weight, of each of `rows`; where there is a residual, x is
// x + residual, which goes to `total` first, rounded.
void rms_norm(Kind kind, void* out, void* total, const void* x, const void* residual,
              const void* weight, i64 rows, i64 width, f32 eps, int threads);
void layer_norm(Kind kind, void* out, const void* x, const void* weight, const void* bias, i64 rows,
                i64 width, f32 eps, int threads);

enum class Pairwise : int { ADD, SUB, MUL, SILU_MUL, GELU_ERF_MUL };
// Rows that lie `step` elements apart.
struct Stepped {
    void* at;
    i64 step;
};
void pairwise(Pairwise op, Kind kind, void* out, const Stepped& a, const Stepped& b, i64 rows, i64 width,
              int threads);
// Of each row the largest, or its place; the first of several, a NaN before all.
void largest_of_rows(Kind kind, void* out, bool places, const Stepped& x, i64 rows, i64 width, int threads);
// Of each row the k largest, the largest first, and their places; of several the first, a NaN before all.
void first_of_rows(Kind kind, void* values, void* places, const Stepped& x, i64 rows, i64 width, i64 k, int threads);
// By what a place of each row is drawn; null where there is no such cut.
struct Draws {
    const i64* keys;
    const f32* temperature;
    const i32* top_k;
    const f32 *top_p, *min_p;
};
// No row has more candidates than k, where that is not 0.
void draw(Kind kind, i64* out, const Stepped& x, const Draws& by, i64 rows, i64 width, i64 k, int threads);
// exp(x) / sum(exp(x)) of each row.
void softmax(Kind kind, void* out, const Stepped& x, i64 rows, i64 width, int threads);

// An array of up to four dimensions, in elements.
struct View {
    void* at;
    i64 shape[4], strides[4];
};

// Rotates pairs of x (batch, tokens, heads, dim) by rows of tables; elements of a head lie side by side; out is row-major.
void rope(Kind kind, const View& out, const View& x, const View& positions, bool positions_64,
          const View& cos, const View& sin, bool interleaved, int threads);

// Turns the first half of the heads of x by `positions`, and writes all to cache[b, slots[b, t]], of `kind`.
void rope_kv_append(Kind given, Kind kind, const View& cache, const View& x, const View& slots, const View& positions,
                    const View& cos, const View& sin, bool interleaved, int threads);

// cache[b, positions[b, t]] = x[b, t]
void kv_append(int size, const View& cache, const View& x, const View& positions, bool positions_64);

// The first of `positions` outside [0, limit); -1 where there is none.
i64 outside(const View& positions, bool positions_64, i64 limit, i64* which);

// -- by index --------------------------------------------------------------------------------------

// Indices of 32 or 64 bits; the largest number says that there is none: what it would give is 0.
struct Ids {
    const void* at;
    bool wide;
    i64 count;
    i64 operator[](i64 i) const { return wide ? ((const i64*)at)[i] : ((const i32*)at)[i]; }
    bool masked(i64 i) const { return (*this)[i] == (wide ? INT64_MAX : INT32_MAX); }
    // Which is the first outside [0, size); -1 where none is.
    i64 outside(i64 size) const;
};

// Rows of a table, in blocks of a format, which may be repacked, or, where that is null, of a kind.
void embedding(Kind kind, void* out, const Ids& ids, const void* table, const Format* format, bool tiled, Kind table_kind,
               i64 width, int threads);
// Of each row of x so many elements, of `size` bytes.
void gather_rows(int size, void* out, const Stepped& x, const Ids& ids, i64 each);

enum class Number : int { F32, F16, BF16, I32, I64 };
// Rounded once; integers to f32 only.
void cast(Kind kind, void* out, const void* x, Number from, i64 count, int threads);

// -- attention -------------------------------------------------------------------------------------

// What keys and values are kept as: the queries' own kind, and beside queries in f32 also in 16 bits or q8_0,
// whose rows are counted in bytes.
enum class Kept : int { SAME, F16, BF16, Q8 };

struct Attention {
    Kind kind;
    Kept kept;
    View out, q, k, v;       // (batch, tokens, heads, dim); pages of k and v where there is a table
    const i32* kv_len;       // contiguous, as the others here; null: all keys
    const i32* q_start;
    const i32* table;
    const f32* alibi;
    void* lse;               // (batch, heads, tokens), f32, or null
    i64 batch, blocks;       // sequences; pages of a sequence
    f32 scale, softcap;
    i64 left, right;         // keys seen on either side; -1: all
    int threads;
};
void attention(const Attention&, i64 most = INT64_MAX);  // of sequences with so many queries at most

// -- images ----------------------------------------------------------------------------------------

// Of (batch, channels, positions): each group of channels less its mean, over its deviation; weight and
// bias (channels), or null.
void group_norm(Kind kind, void* out, const void* x, const void* weight, const void* bias, i64 batch,
                i64 channels, i64 positions, i64 groups, f32 eps, bool with_silu, int threads);
// Planes of elements of 1, 2, 4 or 8 bytes: out[y, x] = from[y * height / out_height, ...].
void upsample_nearest(int size, void* out, const void* from, i64 planes, i64 height, i64 width,
                      i64 out_height, i64 out_width, int threads);

// -- linear layers ---------------------------------------------------------------------------------

// out (rows, outputs) = x (rows, depth) @ w (outputs, depth).T + bias
struct Linear {
    Kind kind;
    void* out;
    const void *x, *w, *bias;  // the last may be null
    const void* tiles;         // the weight packed, by which w may be null; or null
    i64 rows, outputs, depth;
    int threads;
};
void linear(const Linear&);

// -- mixtures of experts ---------------------------------------------------------------------------

// out[t, j] = x[t, j] @ w[chosen[t, j]].T, of weights in blocks, repacked, or where `format` is null of the kind's own.
struct Mixture {
    const Format* format;
    Kind kind;
    void* out;           // (tokens, each, n)
    const void *x, *w;   // (tokens, each, or 1 where `shared`, k); (experts, n, k)
    const i64* chosen;   // (tokens, each)
    i64 tokens, each, experts, n, k;
    bool shared;
    int threads;
    i64 bytes;           // of an expert's weights
};
void mix(const Mixture&, bool exact);

// -- convolutions ----------------------------------------------------------------------------------

// Row-major, channels before height and width.
struct Convolution {
    Kind kind;
    void* out;
    const void *x, *w, *bias;  // the last may be null
    const void* tiles;         // the weight packed, by which w may be null; or null
    i64 batch, channels, height, width, outputs, out_height, out_width;
    i64 kernel[2], stride[2], padding[2], dilation[2];
    int threads;
};
// By tiles, unless `exact`: a window of 3 x 3, stride and dilation 1.
void convolve(const Convolution&, bool exact);

// -- tiles of matrices ----------------------------------------------------------------------------

// What multiplies tiles, of bf16: the name of an extension of instructions; empty where this level has none,
// and the others do nothing.
const char* matrix_instructions();
// A weight of a linear layer as tiles.
i64 packed_bytes(i64 outputs, i64 depth);
void pack_weight(void* tiles, const void* w, i64 outputs, i64 depth, int threads);
void unpack_weight(void* w, const void* tiles, i64 outputs, i64 depth, int threads);
void multiply_tiled(const Product&);
void linear_tiled(const Linear&);
void attention_tiled(const Attention&);
// A weight of a convolution as tiles.
i64 packed_filter_bytes(i64 outputs, i64 channels, i64 taps);
void pack_filter(void* tiles, const void* w, i64 outputs, i64 channels, i64 taps, int threads);
void unpack_filter(void* w, const void* tiles, i64 outputs, i64 channels, i64 taps, int threads);
void convolve_tiled(const Convolution&);

}  // namespace propolis
