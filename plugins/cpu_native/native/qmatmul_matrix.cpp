// Products of many rows with weights in blocks, by tiles of matrices: both factors rounded to bf16, sums in f32.
// Where an activation is denormal, which would count as 0, the other kernel computes the whole call.
#include "matrix.h"

#ifdef PROPOLIS_MATRIX
#include <atomic>

#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 CHUNK = 64;            // steps whose weights are taken apart at a time: they stay in the cache
constexpr i64 ROWS = 16 * SIDE;      // of activations, of a task

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

}  // namespace

void multiply_tiled(const Product& p) {
    const Format& f = *p.format;
    const i64 steps = p.k / DEPTH, blocks = parts(p.m, SIDE), weights = parts(p.n, LANES);
    if (steps == 0) {
        std::memset(p.out, 0, p.m * p.n * size_of(p.kind));
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
    if (!kept) return multiply(p, false);
    i64 offsets[CHUNK];
    for (i64 i = 0; i < CHUNK; ++i) offsets[i] = i * TILE_SIZE;
    const i64 down = parts(p.m, ROWS), weight_bytes = p.k / f.block * f.tile;
    parallel(p.threads, parts(weights, 2) * down, [&](i64 task) {
        const Registers registers;
        thread_local Room<bf16> right_room;
        thread_local Room<> sum_room;
        bf16* right = right_room.of(2 * CHUNK * TILE_SIZE);
        f32* sums = sum_room.of(ROWS * SIDE);
        const i64 tile = task / down * 2, m0 = task % down * ROWS, m1 = std::min(p.m, m0 + ROWS);
        const bool two = tile + 1 < weights;
        for (i64 first = 0; first < steps; first += CHUNK) {
            const i64 some = std::min(CHUNK, steps - first);
            f.widen(p.tiles + tile * weight_bytes, first, some, right);
            if (two) f.widen(p.tiles + (tile + 1) * weight_bytes, first, some, right + CHUNK * TILE_SIZE);
            for (i64 m = m0; m < m1; m += SIDE) {
                multiply_tiles(sums + (m - m0) * SIDE, SIDE, left + (m / LANES * steps + first) * TILE_SIZE, steps * TILE_SIZE, right,
                               two ? CHUNK * TILE_SIZE : 0, offsets,
                               {.steps = some, .rows = std::min(SIDE, m1 - m), .onto = first > 0});
            }
        }
        with_type(p.kind, [&](auto type) {
            typedef decltype(type) T;
            for (i64 m = m0; m < m1; ++m) {
                for (i64 j = 0; j < SIDE; j += LANES) {
                    const i64 n = tile * LANES + j;
                    if (n < p.n) store_some((T*)p.out + m * p.n + n, load(sums + (m - m0) * SIDE + j), p.n - n);
                }
            }
        });
    });
}

}  // namespace propolis

#else

namespace propolis {

void multiply_tiled(const Product&) {}

}  // namespace propolis
#endif
