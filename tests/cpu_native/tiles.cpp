// Blocks by AMX's tiles, whose instructions are functions here, beside the same by dot products and by sums
// in f64.  What the functions do is the pseudocode of Intel's Architecture Instruction Set Extensions manual.
#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace simulated {

struct Tile {
    unsigned char rows[16][64];
};
Tile tiles[8];

float wide(std::uint16_t bits) {
    const std::uint32_t u = (std::uint32_t)bits << 16;
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}
void load(int tile, const void* from, long stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(tiles[tile].rows[r], (const char*)from + r * stride, 64);
}
void store(int tile, void* to, long stride) {
    for (int r = 0; r < 16; ++r) std::memcpy((char*)to + r * stride, tiles[tile].rows[r], 64);
}
void zero(int tile) { std::memset(&tiles[tile], 0, sizeof(Tile)); }
void dot(int to, int left, int right) {
    float c[16][16];
    std::uint16_t a[16][32], b[16][32];
    std::memcpy(c, &tiles[to], sizeof c);
    std::memcpy(a, &tiles[left], sizeof a);
    std::memcpy(b, &tiles[right], sizeof b);
    for (int m = 0; m < 16; ++m) {
        for (int k = 0; k < 16; ++k) {
            for (int n = 0; n < 16; ++n) {
                c[m][n] += wide(a[m][2 * k]) * wide(b[k][2 * n]);
                c[m][n] += wide(a[m][2 * k + 1]) * wide(b[k][2 * n + 1]);
            }
        }
    }
    std::memcpy(&tiles[to], c, sizeof c);
}

}  // namespace simulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) (void)(config)
#define _tile_release() (void)0
#define _tile_loadd simulated::load
#define _tile_stream_loadd simulated::load
#define _tile_stored simulated::store
#define _tile_zero simulated::zero
#define _tile_dpbf16ps simulated::dot
#include "matrix.h"

namespace propolis {
const bool has_amx = false;
}
using namespace propolis;

int main() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    int wrong = 0;
    for (const i64 depth : {2, 30, 32, 34, 96, 160}) {
        for (const bool single : {false, true}) {
            for (const bool onto : {false, true}) {
                const i64 steps = parts(depth, DEPTH), step = steps * TILE_SIZE, row = 3 * LANES;
                std::vector<double> a(SIDE * depth), b(SIDE * depth);
                // Columns are packed as rows and turned.
                bf16* left = (bf16*)std::aligned_alloc(64, 2 * step * sizeof(bf16));
                bf16* right = (bf16*)std::aligned_alloc(64, 2 * step * sizeof(bf16));
                std::memset(left, 0, 2 * step * sizeof(bf16));
                std::memset(right, 0, 2 * step * sizeof(bf16));
                for (i64 r = 0; r < SIDE; ++r) {
                    for (i64 d = 0; d < depth; ++d) {
                        const i64 at = r / LANES * step + d / DEPTH * TILE_SIZE + r % LANES * DEPTH + d % DEPTH;
                        left[at] = narrow<bf16>(normal(random));
                        right[at] = narrow<bf16>(normal(random));
                        a[r * depth + d] = simulated::wide(left[at].bits);
                        b[r * depth + d] = simulated::wide(right[at].bits);
                    }
                }
                for (i64 tile = 0; tile < 2 * steps; ++tile) turn(right + tile * TILE_SIZE);
                // The tiles of either side lie in an order of its own.
                bf16* mixed_left = (bf16*)std::aligned_alloc(64, 2 * step * sizeof(bf16));
                bf16* mixed = (bf16*)std::aligned_alloc(64, 2 * step * sizeof(bf16));
                std::vector<i64> left_offsets(steps), offsets(steps);
                for (i64 i = 0; i < steps; ++i) {
                    left_offsets[i] = (i + 1) % steps * TILE_SIZE;
                    offsets[i] = (steps - 1 - i) * TILE_SIZE;
                    for (i64 half = 0; half < 2; ++half) {
                        const i64 from = half * step + i * TILE_SIZE;
                        std::memcpy(mixed_left + half * step + left_offsets[i], left + from, TILE_SIZE * sizeof(bf16));
                        std::memcpy(mixed + half * step + offsets[i], right + from, TILE_SIZE * sizeof(bf16));
                    }
                }
                const float start = 0.5f;
                const i64 onto_row = 2 * SIDE;
                const std::vector<float> before(SIDE * onto_row, 0.25f);
                std::vector<float> by_tiles(SIDE * row, start), by_pairs(SIDE * row, start);
                const Extent extent{.steps = steps, .pairs = parts(depth, 2), .onto = onto ? before.data() : nullptr, .onto_row = onto_row};
                const i64 next = single ? 0 : step;
                const Offsets both{left_offsets.data(), offsets.data()};
                multiply_by_tiles(by_tiles.data(), row, mixed_left, step, mixed, next, both, extent);
                multiply_tiles(by_pairs.data(), row, mixed_left, step, mixed, next, both, extent);
                const i64 columns = single ? LANES : SIDE;
                for (i64 r = 0; r < SIDE; ++r) {
                    for (i64 c = 0; c < row; ++c) {
                        double expected = start;
                        if (c < columns) {
                            expected = onto ? before[0] : 0;
                            for (i64 d = 0; d < depth; ++d) expected += a[r * depth + d] * b[c * depth + d];
                        }
                        wrong += !(std::abs(by_tiles[r * row + c] - expected) <= 1e-4);
                        wrong += !(std::abs(by_pairs[r * row + c] - expected) <= 1e-4);
                    }
                }
                std::free(left);
                std::free(right);
                std::free(mixed_left);
                std::free(mixed);
            }
        }
    }
    std::printf("%d wrong\n", wrong);
    return wrong != 0;
}
