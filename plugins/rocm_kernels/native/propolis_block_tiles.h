// Products of activations with weights in blocks on matrix instructions, in tiles: weights come to shared
// memory as they are stored, 256 of a row at a time, activations 128 of a row.  Each weight is unpacked by one
// thread, right into the numbers of 16 bits that the instructions take.  Sums are in f32.
#pragma once

#include "propolis_copy.h"
#include "propolis_few.h"
#include "propolis_matrix_product.h"

#if PROPOLIS_FRAGMENTS

#if defined(PROPOLIS_MMA)
constexpr int GROUP_RUNS = 4;  // that a thread unpacks at a time
#else
constexpr int GROUP_RUNS = 2;
#endif
template <class Format>
constexpr int SCALED_RUNS = GROUP_RUNS;  // of these, neighbours that have the same scale
template <>
constexpr int SCALED_RUNS<Q2_K> = 2;
template <>
constexpr int SCALED_RUNS<Q3_K> = 2;
template <>
constexpr int SCALED_RUNS<Q6_K> = 2;
constexpr int TALL = TILE_ROWS / FRAGMENT / WARPS;  // fragments of weights of a warp
static_assert(TALL * FRAGMENT * WARPS == TILE_ROWS, "a tile's rows are not for whole warps");
#if defined(PROPOLIS_MMA)
constexpr int BUFFERS = 2;
#else
constexpr int BUFFERS = 1;  // what comes next is in registers
#endif

// A thread's runs are of neighbouring groups, so that it unpacks four with one scale: of a stage, the part that
// Held has as its `depth`-th eight is not the depth-th of each SPAN, but this from here on.
constexpr int STRETCH = DEEP / (SPAN / RUN);

// Pieces that a chunk may touch, which begins anywhere; odd, so that rows begin in several banks.
template <class Format>
constexpr int PIECES = (CHUNK / Format::SIZE * Format::BYTES + 2 * (PACK_BYTES - 1)) / PACK_BYTES | 1;

// The weights' part of a tile: of each row as many threads as a power of two copy a piece each.
template <class Format>
struct BlockPanel {
    static constexpr int BYTES = CHUNK / Format::SIZE * Format::BYTES;
    static constexpr int ROOM = PIECES<Format> * PACK_BYTES;
    static constexpr int ALONG = PIECES<Format> <= 8 ? 8 : PIECES<Format> <= 16 ? 16 : 32;
    static constexpr int BELOW = BLOCK / ALONG;
    static constexpr int PASSES = TILE_ROWS / BELOW;
    const u8* at;   // where the first row begins
    const u8* end;  // of all weights
    u32 row_bytes;
    i32 last;       // row of the tile; those beyond are that once more
    i32 row, piece;
    i32 clipped;    // from this row on pieces may go beyond all weights; those of short rows do sooner
    u32 behind[TALL][RUNS_HELD];  // a multiple of a piece, the thread's own rows begin
#if !defined(PROPOLIS_MMA)
    Piece held[PASSES];
#endif

    PROPOLIS_METHOD BlockPanel(const u8* w, i64 first, i64 rows, i64 depth, i64 row_bytes)
        : at(w + first * row_bytes), row_bytes((u32)row_bytes) {
        end = w + (rows - 1) * row_bytes + depth / Format::SIZE * Format::BYTES;
        last = (i32)(rows - first < TILE_ROWS ? rows - first : TILE_ROWS) - 1;
        clipped = row_bytes < BYTES + PACK_BYTES ? 0 : first + last == rows - 1 ? last : TILE_ROWS;
        row = (i32)thread_x() / ALONG, piece = (i32)thread_x() % ALONG;
#pragma unroll
        for (int f = 0; f < TALL; ++f) {
#pragma unroll
            for (int i = 0; i < RUNS_HELD; ++i) behind[f][i] = (u32)(u64)row_at(own_row(f, i)) % PACK_BYTES;
        }
    }
    PROPOLIS_METHOD static i32 own_row(int f, int i) {
        const i32 warp = (i32)thread_x() / PROPOLIS_WARP;  // of each thread: scalar registers are few
        return (warp * TALL + f) * FRAGMENT + Held<bf16>::row(i);
    }
    PROPOLIS_METHOD const u8* row_at(i32 row) const { return at + (u64)(u32)(row < last ? row : last) * row_bytes; }
    // Where the thread's piece of a row of a chunk is, and how many of its bytes there are.
    PROPOLIS_METHOD const u8* from(int pass, i32 chunk, i32& bytes) const {
        const i32 below = row + pass * BELOW;
        const u8* start = row_at(below) + (i64)chunk * BYTES;
        const u32 over = (u32)(u64)start % PACK_BYTES;
        const u8* from = start - over + piece * PACK_BYTES;
        bytes = piece * PACK_BYTES < (i32)over + BYTES ? PACK_BYTES : 0;
        if (below >= clipped && bytes) {
            const i64 rest = end - from;
            bytes = rest < 0 ? 0 : rest < PACK_BYTES ? (i32)rest : PACK_BYTES;
        }
        return from;
    }
#if defined(PROPOLIS_MMA)
    PROPOLIS_METHOD void copy(u8* slot, i32 chunk) const {
        u8* to = slot + row * ROOM + piece * PACK_BYTES;
        if (piece >= PIECES<Format>) return;
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            i32 bytes;
            const u8* source = from(p, chunk, bytes);
            copy_async(to + p * BELOW * ROOM, bytes ? source : at - (u64)at % PACK_BYTES, bytes);
        }
    }
#else
    PROPOLIS_METHOD void fetch(i32 chunk) {
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            i32 bytes;
            const u8* source = from(p, chunk, bytes);
            held[p] = load_piece(bytes ? source : at - (u64)at % PACK_BYTES, bytes);
        }
    }
    PROPOLIS_METHOD void put(u8* slot) const {
        u8* to = slot + row * ROOM + piece * PACK_BYTES;
        if (piece >= PIECES<Format>) return;
#pragma unroll
        for (int p = 0; p < PASSES; ++p) store_pack<PACK_BYTES / 4>((u32*)(to + p * BELOW * ROOM), held[p]);
    }
#endif
    // Where one of the thread's own rows has the block of its weight k of a chunk, in whose slot.
    PROPOLIS_METHOD const u8* block_at(const u8* slot, int f, int i, i32 chunk, u32 k) const {
        const u32 over = (behind[f][i] + (u32)chunk * BYTES) % PACK_BYTES;
        return slot + own_row(f, i) * ROOM + over + k / Format::SIZE * Format::BYTES;
    }
};

// The activations' part: M rows, of which a thread copies some packs.
template <class T, int M>
struct ActivationPanel {
    static constexpr int WIDE = DEEP / COPIED;
    static constexpr int PACKS = M * WIDE / BLOCK;
    static constexpr int BELOW = BLOCK / WIDE;
#if defined(PROPOLIS_MMA)
    static constexpr int APART = DEEP;
#else
    static constexpr int APART = DEEP + GAP;
#endif
    const T* at;  // of the next stage
    i64 row;
    i32 rows, depth;  // that are left, from the thread's first pack on
    i32 below, along;
#if !defined(PROPOLIS_MMA)
    Coming<T> coming[PACKS];
#endif

    PROPOLIS_METHOD ActivationPanel(const T* x, i64 first, i64 m, i64 depth, i64 row) : row(row) {
        below = (i32)thread_x() / WIDE, along = (i32)thread_x() % WIDE;
        at = x + (first + below) * row + along * COPIED;
        rows = (i32)(m - first < M ? m - first : M) - below;
        this->depth = (i32)depth - along * COPIED;
    }
    // Where a row of the tile has its `which`-th pack of a stage.  On NVIDIA eight threads at a time load those
    // of two rows and of four stretches: these are of all banks.
    PROPOLIS_METHOD static int place(int row, int which) {
#if defined(PROPOLIS_MMA)
        return row * APART + (which / 4 + (which % 4 * 4 ^ row % 2 * 4)) * COPIED;
#else
        return row * APART + which * COPIED;
#endif
    }
#if defined(PROPOLIS_MMA)
    PROPOLIS_METHOD void copy(T* to, const T* any) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const bool there = p * BELOW < rows && depth > 0;
            copy_async(to + place(below + p * BELOW, along), there ? at + p * BELOW * row : any, there ? 16 : 0);
        }
        at += DEEP, depth -= DEEP;
    }
#else
    PROPOLIS_METHOD void fetch(const T* any) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const bool there = p * BELOW < rows && depth > 0;
            coming[p].load(there ? at + p * BELOW * row : any, there);
        }
        at += DEEP, depth -= DEEP;
    }
    PROPOLIS_METHOD void put(T* to) const {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) coming[p].store(to + place(below + p * BELOW, along));
    }
#endif
};

// A thread's next runs of a fragment of rows of weights, as they are stored.
struct Group {
    Stored runs[RUNS_HELD][GROUP_RUNS];

    // Those of a chunk from its weight k and `begin` on, of which rows have `depth` more.
    template <class Format>
    PROPOLIS_METHOD void load(const BlockPanel<Format>& weights, const u8* slot, int f, int i, i32 chunk, u32 k,
                              u32 begin, i32 depth) {
        const u32 at = k + begin;
        [[maybe_unused]] const bool there = (i32)begin < depth;  // behind the last weight lies anything
        const u8* block = weights.block_at(slot, f, i, chunk, at);
#pragma unroll
        for (int r = 0; r < GROUP_RUNS; ++r) {
            Stored& own = runs[i][r];
            Format::load(block, (int)(at % Format::SIZE / (GROUP_RUNS * RUN) * GROUP_RUNS) + r, own);
            // So that it is computed once.
            const Stored& same = runs[i][r / SCALED_RUNS<Format> * SCALED_RUNS<Format>];
            own.scale = same.scale;
            if constexpr (Format::shifted) own.shift = same.shift;
            if constexpr (Format::SIZE < CHUNK) {
                own.scale = there ? own.scale : 0.0f;
                if constexpr (Format::shifted) own.shift = there ? own.shift : 0.0f;
            }
        }
    }
    template <class Format, class T>
    PROPOLIS_METHOD void unpack(Held<T>& to, int r) const {
#pragma unroll
        for (int i = 0; i < RUNS_HELD; ++i) {
            const Stored& own = runs[i][r];
            Weights<f32> one;
            set_quants(own.low, own.high, own.less, one);
            one.scale = own.scale, one.shift = own.shift;
            f32 values[RUN];
            dequantized<Format>(one, values);
            to.runs[i] = rounded_run<T>(values);
        }
    }
};

// Adds the products of a stage, of the chunk's weights from k on, of which rows have `depth` more.
template <class Format, int M, class T>
PROPOLIS_FN void multiply_stage(Sums (&sums)[TALL][M / FRAGMENT], const BlockPanel<Format>& weights,
                                const u8* slot, const T* x, i32 chunk, u32 k, i32 depth) {
#if defined(PROPOLIS_MMA)
#pragma unroll
#else
#pragma unroll 1  // all at once take more registers than RDNA has
#endif
    for (u32 v = 0; v < STRETCH / RUN; v += GROUP_RUNS) {
        Group stored[TALL];
#pragma unroll
        for (int i = 0; i < RUNS_HELD; ++i) {
            const u32 begin = (u32)Held<T>::depth(i) / RUN * STRETCH + v * RUN;
#pragma unroll
            for (int f = 0; f < TALL; ++f) stored[f].load(weights, slot, f, i, chunk, k, begin, depth);
        }
#pragma unroll
        for (int r = 0; r < GROUP_RUNS; ++r) {
            Held<T> left[TALL];
#pragma unroll
            for (int f = 0; f < TALL; ++f) stored[f].template unpack<Format>(left[f], r);
#pragma unroll
            for (int c = 0; c < M / FRAGMENT; ++c) {
                Held<T> right;
#pragma unroll
                for (int i = 0; i < RUNS_HELD; ++i) {
                    const int which = Held<T>::depth(i) / RUN * (STRETCH / RUN) + (int)v + r;
                    right.runs[i] = bits_as<Pack<u16, RUN>>(load_pack<RUN>(
                        x + ActivationPanel<T, M>::place(c * FRAGMENT + Held<T>::row(i), which)));
                }
#pragma unroll
                for (int f = 0; f < TALL; ++f) sums[f][c].template add<false>(left[f], right);
            }
        }
    }
}

// The sums of a tile of (m, n), which begins at row i0 and column j0.
template <int M>
PROPOLIS_FN void store_sums(f32* to, const Sums (&sums)[TALL][M / FRAGMENT], i64 i0, i64 j0, i64 m, i64 n) {
#pragma unroll
    for (int f = 0; f < TALL; ++f) {
#pragma unroll
        for (int c = 0; c < M / FRAGMENT; ++c) {
#pragma unroll
            for (int e = 0; e < Sums::COUNT; ++e) {
                const i64 row = i0 + c * FRAGMENT + Sums::column(e);
                const i64 column = j0 + (warp_of_block() * TALL + f) * FRAGMENT + Sums::row(e);
                if (row < m && column < n) to[row * n + column] = sums[f][c].at[e];
            }
        }
    }
}

// What this block has of a product in tiles of some rows of activations: which part of the depth of which tile.
struct PartOfTile {
    i64 part;
    TilePlace place;
    i32 c0, rest;  // its first chunk, and the depth from there on

    PROPOLIS_METHOD PartOfTile(i64 rows, i64 m, i64 n, i64 depth, i64 chunks, i64 first) {
        const i64 down = (m + rows - 1) / rows, along = (n + TILE_ROWS - 1) / TILE_ROWS;
        const i64 block = first + block_x();
        part = block / (down * along);
        place = tile_place(block - part * (down * along), down, along);
        c0 = (i32)(part * chunks);
        rest = (i32)(depth - (i64)c0 * CHUNK);
    }
};

// Rows of `x` begin at multiples of 16 bytes.  `out` is (part, m, n), where several share the depth, each of so
// many chunks.
template <class Format, int M, class T>
PROPOLIS_FN void product_of_blocks(f32* out, const T* x, const u8* w, i64 m, i64 n, i64 depth, i64 x_row,
                                   i64 row_bytes, i64 chunks, i64 first) {
    typedef ActivationPanel<T, M> Activations;
    typedef BlockPanel<Format> Blocks;
    PROPOLIS_DYNAMIC_SHARED(T, shared);
    u8* const slots = (u8*)(shared + BUFFERS * M * Activations::APART);
    const PartOfTile own(M, m, n, depth, chunks, first);
    const i64 i0 = own.place.i * M, j0 = own.place.j * TILE_ROWS;
    const i32 c0 = own.c0, rest = own.rest;
    const i32 stages = ((rest < chunks * CHUNK ? rest : (i32)chunks * CHUNK) + DEEP - 1) / DEEP;
    Blocks weights(w, j0, n, depth, row_bytes);
    Activations activations(x + (i64)c0 * CHUNK, i0, m, rest, x_row);
    const auto buffer = [&](i32 t) { return shared + t % BUFFERS * (M * Activations::APART); };
    const auto slot = [&](i32 c) { return slots + c % BUFFERS * (TILE_ROWS * Blocks::ROOM); };
    Sums sums[TALL][M / FRAGMENT] = {};
    constexpr int HALVES = CHUNK / DEEP;
#if defined(PROPOLIS_MMA)
    weights.copy(slot(0), c0);
    activations.copy(buffer(0), x);
    end_of_stage();
#else
    // Weights of Q8_K leave 64 rows too few registers for activations on their way.
    constexpr bool EARLY = M < 64 || Format::BYTES < Q8_K_BYTES;
    weights.fetch(c0);
    if (EARLY) activations.fetch(x);
#endif
    for (i32 t = 0; t < stages; t += HALVES) {
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            if (t + h >= stages) break;
            const bool more = t + h + 1 < stages;
            const bool last = h == HALVES - 1;
            const i32 chunk = t / HALVES;
#if defined(PROPOLIS_MMA)
            wait_for_stage(BUFFERS);
            __syncthreads();
            if (more) activations.copy(buffer(t + h + 1), x);
            if (h == 0 && t + HALVES < stages) weights.copy(slot(chunk + 1), c0 + chunk + 1);
            end_of_stage();
#else
            __syncthreads();
            if (h == 0) weights.put(slots);
            if (!EARLY) activations.fetch(x);
            activations.put(shared);
            __syncthreads();
            if (EARLY && more) activations.fetch(x);
            if (last && more) weights.fetch(c0 + chunk + 1);
#endif
            (void)last;
            multiply_stage<Format, M>(sums, weights, slot(chunk), buffer(t + h), c0 + chunk, (u32)h * DEEP,
                           rest - (t + h) * DEEP);
        }
    }
    store_sums<M>(out + own.part * m * n, sums, i0, j0, m, n);
}

#endif

// The sums of all parts, COUNT neighbours a thread.
template <int COUNT>
PROPOLIS_FN void join_parts(f32* out, const f32* parts, i64 size, i64 count) {
    const i64 at = ((i64)block_x() * BLOCK + thread_x()) * COUNT;
    if (at >= size) return;
    store_pack<COUNT>(out + at, sum_of_parts<COUNT>(parts + at, size, count));
}
