// Products of bf16 with sums in f32, by tiles.  A tile is 16 rows of 64 bytes: of the left matrix 16 rows of
// 32 elements, of the right one 16 pairs of rows of 16 columns.  What is multiplied is packed first, a tile
// in a row of memory: rows that straddle lines, or lie a page apart, cost more.
// Two kinds of instructions take these: AMX's, of whole tiles, and AVX-512's dot products of pairs.  Both take
// what is denormal for 0.  Described in Intel's Architecture Instruction Set Extensions manual, chapter 3.
#pragma once

#include <algorithm>

#include "kernels.h"

#if defined(__AVX512BF16__)
#define PROPOLIS_MATRIX 1

namespace propolis {

constexpr i64 DEPTH = 32;               // elements that are summed by one instruction of AMX
constexpr i64 PAIRS = DEPTH / 2;
constexpr i64 TILE_SIZE = LANES * DEPTH;     // elements of a packed one
constexpr i64 SIDE = 2 * LANES;         // rows and columns of a block
constexpr i64 CHUNK = 20;               // most steps at a time: of 32 columns these stay in the first cache

inline i64 parts(i64 count, i64 size) { return (count + size - 1) / size; }

// Steps that are a multiplication at a time: as many as fit, in equal parts; one of none where there are none.
struct Chunks {
    i64 steps, count = std::max<i64>(parts(steps, CHUNK), 1);
    i64 operator[](i64 chunk) const { return steps * chunk / count; }  // the first one
};

struct alignas(64) Shapes {
    u8 palette = 1, start = 0, reserved[14] = {};
    u16 bytes[16] = {};
    u8 rows[16] = {};
    Shapes() {
        for (int i = 0; i < 8; ++i) {
            bytes[i] = 64;
            rows[i] = 16;
        }
    }
};

extern const bool has_amx;

// AMX's registers are a thread's own, while one of these lives.
struct Registers {
    Registers() {
        static const Shapes shapes;
        asm volatile("" ::: "memory");  // compilers are not told of all that is read
        if (has_amx) _tile_loadconfig(&shapes);
    }
    ~Registers() {
        if (has_amx) _tile_release();
    }
};

// What of a block is computed; what is beyond is undefined, and elements beyond `pairs` are 0 on both sides.
struct Extent {
    i64 steps;                    // tiles in depth
    i64 pairs = steps * PAIRS;    // of elements in depth
    i64 rows = SIDE;
    const f32* onto = nullptr;    // what the sums are added to, in rows as far apart as `onto_row`
    i64 onto_row = 0;
};

// Where a step's tiles are, in elements from the first.
struct Offsets {
    const i64 *left, *right;
};

// to (SIDE, SIDE) = the sum over `steps` of two tiles on the left, `left_step` apart, by two on the right,
// or by one where `right_step` is 0.  Rows of the result are `row` elements apart.
inline void multiply_by_tiles(f32* to, i64 row, const bf16* left, i64 left_step, const bf16* right, i64 right_step,
                              const Offsets& offsets, const Extent& extent) {
    const i64 bytes = row * sizeof(f32), onto_bytes = extent.onto_row * sizeof(f32);
    f32* below = to + LANES * row;
    asm volatile("" ::: "memory");  // as above
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (const f32* onto = extent.onto) {
        const f32* onto_below = onto + LANES * extent.onto_row;
        _tile_loadd(0, onto, onto_bytes);
        _tile_loadd(2, onto_below, onto_bytes);
        if (right_step) _tile_loadd(1, onto + LANES, onto_bytes);
        if (right_step) _tile_loadd(3, onto_below + LANES, onto_bytes);
    }
    for (i64 i = 0; i < extent.steps; ++i) {
        const bf16 *a = left + offsets.left[i], *b = right + offsets.right[i];
        _tile_stream_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_stream_loadd(5, a + left_step, 64);
        _tile_loadd(7, b + right_step, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to, bytes);
    _tile_stored(2, below, bytes);
    if (right_step) _tile_stored(1, to + LANES, bytes);
    if (right_step) _tile_stored(3, below + LANES, bytes);
    asm volatile("" ::: "memory");
}

// The same by dot products: sums of eight rows and one or two vectors of columns are in registers at a time.
template <int ACROSS>
inline void multiply_by_pairs(f32* to, i64 row, const bf16* left, i64 left_step, const bf16* right, i64 right_step,
                              const Offsets& offsets, const Extent& extent) {
    constexpr int ROWS = 8;
    for (i64 first = 0; first < extent.rows; first += ROWS) {
        const bf16* rows = left + first / LANES * left_step + first % LANES * DEPTH;
        f32* out = to + first * row;
        __m512 sums[ROWS][ACROSS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < ACROSS; ++v) {
                sums[r][v] = extent.onto ? _mm512_loadu_ps(extent.onto + (first + r) * extent.onto_row + v * LANES) : _mm512_setzero_ps();
            }
        }
        for (i64 i = 0, left_over = extent.pairs; left_over > 0; ++i, left_over -= PAIRS) {
            const bf16 *a = rows + offsets.left[i], *b = right + offsets.right[i];
            for (i64 pair = 0; pair < std::min(left_over, PAIRS); ++pair) {
                __m512bh columns[ACROSS];
#pragma GCC unroll 2
                for (int v = 0; v < ACROSS; ++v) {
                    columns[v] = (__m512bh)_mm512_load_si512(b + v * right_step + pair * DEPTH);
                }
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    i32 both;
                    std::memcpy(&both, a + r * DEPTH + 2 * pair, sizeof both);
                    const __m512bh factor = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 2
                    for (int v = 0; v < ACROSS; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factor, columns[v]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < ACROSS; ++v) _mm512_storeu_ps(out + r * row + v * LANES, sums[r][v]);
        }
    }
}

inline void multiply_tiles(f32* to, i64 row, const bf16* left, i64 left_step, const bf16* right, i64 right_step,
                           const Offsets& offsets, const Extent& extent) {
    const auto multiply = has_amx ? multiply_by_tiles : right_step ? multiply_by_pairs<2> : multiply_by_pairs<1>;
    multiply(to, row, left, left_step, right, right_step, offsets, extent);
}

// Thirty-two elements; those beyond the last are 0.
PROPOLIS_INLINE __m512i load_bits(const bf16* from, i64 count) {
    if (count >= DEPTH) return _mm512_loadu_si512(from);
    return count <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16((1u << count) - 1, from);
}
// Sixteen of each, turn by turn.
PROPOLIS_INLINE __m512i paired(const __m512i& even, const __m512i& odd) {
    alignas(64) static constexpr u16 order[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                  8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    return _mm512_permutex2var_epi16(even, _mm512_load_si512(order), odd);
}
// Sixteen numbers of each, turn by turn, rounded.
PROPOLIS_INLINE __m512i rounded_pairs(const F32s& even, const F32s& odd) {
    alignas(64) static constexpr u16 order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(bits_as<__m512>(odd), bits_as<__m512>(even));
    return _mm512_permutexvar_epi16(_mm512_load_si512(order), both);
}
// Thirty-two numbers, the first sixteen below.
PROPOLIS_INLINE __m512i rounded(const F32s& below, const F32s& above) {
    return (__m512i)_mm512_cvtne2ps_pbh(bits_as<__m512>(above), bits_as<__m512>(below));
}

// Pairs of elements change places with rows: of a tile of the left, whose rows are columns of the right.
inline void turn(bf16* tile) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(tile + i * DEPTH);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Quarter q of r[4 i + c] is now column 4 q + c of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512i x = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88), y = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        const __m512i z = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        const __m512i w = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        _mm512_store_si512(tile + c * DEPTH, _mm512_shuffle_i32x4(x, z, 0x88));
        _mm512_store_si512(tile + (4 + c) * DEPTH, _mm512_shuffle_i32x4(y, w, 0x88));
        _mm512_store_si512(tile + (8 + c) * DEPTH, _mm512_shuffle_i32x4(x, z, 0xdd));
        _mm512_store_si512(tile + (12 + c) * DEPTH, _mm512_shuffle_i32x4(y, w, 0xdd));
    }
}

}  // namespace propolis
#endif
