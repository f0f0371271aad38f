// Products of many rows with weights in blocks, by tiles of matrices: both factors rounded to bf16, sums in f32.
// Where an activation is denormal, which would count as 0, the other kernel computes the whole call.
#include "matrix.h"

#ifdef PROPOLIS_MATRIX
#include <atomic>
#include <memory>

#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 LEAST = 8 * SIDE, ROWS = 16 * SIDE;  // of a task: fewer do not pay for taking weights apart once more
constexpr i64 MOST = 9;                            // most blocks of columns of a task: their sums stay in the second cache

__mmask16 denormal(const F32s& x) {
    const U32s size = bits_as<U32s>(magnitude(x));
    return _mm512_cmplt_epu32_mask((__m512i)(size - splat<U32s>(1u)).part[0], _mm512_set1_epi32(0x7fffff));
}

// Rows [first, first + 16) of activations as tiles of the left: to[row / 16][k / 32][16][32].  Whether all of
// them keep their value.
template <class T>
bool pack(const Product& p, i64 first, bf16* to) {
    const i64 steps = p.k / DEPTH;
    __mmask16 lost = 0;
    for (i64 row = first; row < first + LANES; ++row) {
        bf16* tile = to + first / LANES * steps * TILE_SIZE + (row - first) * DEPTH;
        const T* from = (const T*)p.x + row * p.k;
        for (i64 step = 0; step < steps; ++step, tile += TILE_SIZE, from += DEPTH) {
            const bool there = row < p.m;
            const F32s below = there ? load_wide(from) : splat(0.0f);
            const F32s above = there ? load_wide(from + LANES) : splat(0.0f);
            lost |= denormal(below) | denormal(above);
            _mm512_store_si512(tile, rounded(below, above));
        }
    }
    return !lost;
}

// Sums of some rows from the m-th on, and of the c-th block of columns, to where they belong.
void put(const Product& p, const f32* sums, i64 m, i64 rows, i64 c) {
    if (p.gated) {
        for (i64 i = 0; i < rows; ++i, sums += SIDE) {
            store((f32*)p.out + (m + i) * (p.n / 2) + c * LANES, silu(load(sums)) * load(sums + LANES));
        }
        return;
    }
    with_type(p.kind, [&](auto type) {
        typedef decltype(type) T;
        for (i64 i = 0; i < rows; ++i) {
            T* out = (T*)p.out + (m + i) * p.n;
            for (i64 n = c * SIDE, j = 0; j < SIDE && n < p.n; j += LANES, n += LANES) {
                store_some(out + n, load(sums + i * SIDE + j), p.n - n);
            }
        }
    });
}

// The same by vectors, gated in a step of its own.
void multiply_gated(Product p) {
    const std::unique_ptr<f32[]> both(new f32[p.m * p.n]);  // seldom: it is not kept
    void* out = p.out;
    const i64 half = p.n / 2;
    p.out = both.get();
    multiply(p, false);
    pairwise(Pairwise::SILU_MUL, p.kind, out, {both.get(), p.n}, {both.get() + half, p.n}, p.m, half, p.threads);
}

}  // namespace

void multiply_tiled(const Product& p) {
    const Format& f = *p.format;
    const i64 steps = p.k / DEPTH, blocks = parts(p.m, SIDE), weights = parts(p.n, LANES);
    if (steps == 0) {
        std::memset(p.out, 0, p.m * (p.gated ? p.n / 2 : p.n) * size_of(p.kind));
        return;
    }
    thread_local Room<bf16> left_room;
    bf16* left = left_room.of(blocks * 2 * steps * TILE_SIZE);
    std::atomic<bool> kept = true;
    parallel(p.threads, blocks * 2, [&](i64 task) {
        with_type(p.kind, [&](auto type) {
            if (!pack<decltype(type)>(p, task * LANES, left)) kept = false;
        });
    });
    if (!kept) return p.gated ? multiply_gated(p) : multiply(p, false);
    i64 offsets[CHUNK];
    for (i64 i = 0; i < CHUNK; ++i) offsets[i] = i * TILE_SIZE;
    // Each thread multiplies the rows that it has packed, where they are not too few.
    const i64 high = std::clamp(parts(blocks, p.threads) * SIDE, LEAST, ROWS), down = parts(p.m, high);
    const i64 columns = parts(weights, 2), across = std::min(columns, std::max(parts(columns, MOST), parts(4 * p.threads, down)));
    const i64 weight_bytes = p.k / f.block * f.tile;
    const Chunks chunks{steps};
    parallel(p.threads, across * down, [&](i64 task) {
        const Registers registers;
        thread_local Room<bf16> right_room;
        thread_local Room<> sum_room;
        bf16* right = right_room.of(2 * CHUNK * TILE_SIZE);
        const i64 c0 = columns * (task % across) / across, c1 = columns * (task % across + 1) / across;
        const i64 m0 = task / across * high, m1 = std::min(p.m, m0 + high);
        f32* all = sum_room.of((c1 - c0) * high * SIDE);
        for (i64 chunk = 0; chunk < chunks.count; ++chunk) {
            const i64 first = chunks[chunk], some = chunks[chunk + 1] - first;
            for (i64 c = c0; c < c1; ++c) {
                // Two neighbours, or, to be gated, one of each half.
                const i64 one = p.gated ? c : 2 * c, other = p.gated ? c + columns : 2 * c + 1;
                const bool two = other < weights;
                f32* sums = all + (c - c0) * high * SIDE;
                for (i64 tile = 0; tile <= two; ++tile) {
                    f.widen(p.tiles + (tile ? other : one) * weight_bytes, first, some, right + tile * CHUNK * TILE_SIZE);
                }
                for (i64 m = m0; m < m1; m += SIDE, sums += SIDE * SIDE) {
                    const i64 rows = std::min(SIDE, m1 - m);
                    multiply_tiles(sums, SIDE, left + (m / LANES * steps + first) * TILE_SIZE, steps * TILE_SIZE, right,
                                   two ? CHUNK * TILE_SIZE : 0, {offsets, offsets},
                                   {.steps = some, .rows = rows, .onto = chunk ? sums : nullptr, .onto_row = SIDE});
                    if (chunk + 1 == chunks.count) put(p, sums, m, rows, c);
                }
            }
        }
    });
}

}  // namespace propolis

#else

namespace propolis {

void multiply_tiled(const Product&) {}

}  // namespace propolis
#endif
