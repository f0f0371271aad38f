// Which instructions multiply tiles, and linear layers by them.
#include "matrix.h"

#ifdef PROPOLIS_MATRIX
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

sigjmp_buf refused;

// A kernel may list AMX's instructions and refuse them: it is asked for them, and one is tried.
bool granted() {
    constexpr long ASK = 0x1023, TILES = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    if (!__builtin_cpu_supports("amx-bf16") || syscall(SYS_arch_prctl, ASK, TILES)) return false;
    struct sigaction mine = {}, before;
    mine.sa_handler = [](int) { siglongjmp(refused, 1); };
    if (sigaction(SIGILL, &mine, &before)) return false;
    bool right = false;
    if (!sigsetjmp(refused, 1)) {
        alignas(64) f32 sums[SIDE * LANES];
        alignas(64) bf16 ones[TILE_SIZE];
        std::fill(ones, ones + TILE_SIZE, bf16{0x3f80});
        const i64 offset = 0;
        const Shapes shapes;
        asm volatile("" ::: "memory");  // compilers are not told of all that is read
        _tile_loadconfig(&shapes);
        multiply_by_tiles(sums, LANES, ones, 0, ones, 0, {&offset, &offset}, {1});
        _tile_release();
        right = std::all_of(sums, sums + SIDE * LANES, [](f32 x) { return x == DEPTH; });
    }
    sigaction(SIGILL, &before, nullptr);
    return right;
}

// Rows [first, first + 16) as tiles of the left: to[row / 16][depth / 32][16][32].
void pack_rows(const bf16* from, i64 rows, i64 depth, i64 first, bf16* to) {
    const i64 steps = parts(depth, DEPTH);
    for (i64 row = first; row < first + LANES; ++row) {
        bf16* tile = to + first / LANES * steps * TILE_SIZE + (row - first) * DEPTH;
        for (i64 step = 0; step < steps; ++step) {
            const i64 left = row < rows ? depth - step * DEPTH : 0;
            _mm512_store_si512(tile + step * TILE_SIZE, load_bits(from + row * depth + step * DEPTH, left));
        }
    }
}

// The same as tiles of the right, whose columns the rows are: to[row / 16][depth / 32][16][16][2].
void pack_columns(const bf16* from, i64 rows, i64 depth, i64 first, bf16* to) {
    const i64 steps = parts(depth, DEPTH);
    pack_rows(from, rows, depth, first, to);
    for (i64 step = 0; step < steps; ++step) turn(to + (first / LANES * steps + step) * TILE_SIZE);
}

constexpr i64 DOWN = 8;           // most blocks of rows of a task
constexpr i64 ROOM = i64{1} << 20;  // bytes of theirs, which stay in the second cache

}  // namespace

const bool has_amx = granted();

const char* matrix_instructions() { return has_amx ? "AMX" : "AVX512_BF16"; }

i64 packed_bytes(i64 outputs, i64 depth) {
    return parts(outputs, SIDE) * 2 * parts(depth, DEPTH) * TILE_SIZE * (i64)sizeof(bf16);
}

void pack_weight(void* tiles, const void* w, i64 outputs, i64 depth, int threads) {
    parallel(threads, parts(outputs, SIDE) * 2, [&](i64 task) {
        pack_columns((const bf16*)w, outputs, depth, task * LANES, (bf16*)tiles);
    });
}

void unpack_weight(void* w, const void* tiles, i64 outputs, i64 depth, int threads) {
    const i64 steps = parts(depth, DEPTH);
    parallel(threads, parts(outputs, LANES), [&](i64 task) {
        alignas(64) bf16 tile[TILE_SIZE];
        for (i64 step = 0; step < steps; ++step) {
            std::memcpy(tile, (const bf16*)tiles + (task * steps + step) * TILE_SIZE, sizeof tile);
            turn(tile);
            const i64 count = std::min(DEPTH, depth - step * DEPTH) * (i64)sizeof(bf16);
            for (i64 row = task * LANES; row < std::min(outputs, (task + 1) * LANES); ++row) {
                std::memcpy((bf16*)w + row * depth + step * DEPTH, tile + row % LANES * DEPTH, count);
            }
        }
    });
}

void linear_tiled(const Linear& l) {
    if (l.rows * l.outputs == 0) return;
    const i64 steps = parts(l.depth, DEPTH), step = steps * TILE_SIZE, columns = parts(l.outputs, SIDE);
    thread_local Room<bf16> weight_room;
    thread_local Room<i64> offset_room;
    const bf16* right = (const bf16*)l.tiles;
    if (!right) {
        bf16* packed = weight_room.of(columns * 2 * step);
        pack_weight(packed, l.w, l.outputs, l.depth, l.threads);
        right = packed;
    }
    i64* offsets = offset_room.of(steps);
    for (i64 i = 0; i < steps; ++i) offsets[i] = i * TILE_SIZE;
    // Each task packs its rows; where they are few, outputs are shared out too.
    const i64 block = 2 * step * (i64)sizeof(bf16), most = std::clamp<i64>(ROOM / std::max<i64>(block, 1), 1, DOWN);
    const i64 down = parts(l.rows, most * SIDE);
    const i64 across = std::clamp<i64>(parts(4 * l.threads, down), 1, parts(columns, 2));
    const i64 wide = parts(columns, across);
    const Chunks chunks{steps};
    parallel(l.threads, across * down, [&](i64 task) {
        const Registers registers;
        thread_local Room<bf16> row_room;
        alignas(64) f32 all[DOWN * SIDE * SIDE];
        bf16* left = row_room.of(most * 2 * step);
        const i64 m0 = task / across * most * SIDE, rows = std::min(most * SIDE, l.rows - m0);
        const i64 n0 = task % across * wide, n1 = std::min(n0 + wide, columns);
        if (n0 >= n1) return;
        for (i64 row = 0; row < parts(rows, SIDE) * SIDE; row += LANES) {
            pack_rows((const bf16*)l.x + m0 * l.depth, rows, l.depth, row, left);
        }
        for (i64 n = n0; n < n1; ++n) {
            for (i64 chunk = 0; chunk < chunks.count; ++chunk) {
                const i64 first = chunks[chunk], some = chunks[chunk + 1] - first;
                const i64 pairs = std::min(some * PAIRS, parts(l.depth, 2) - first * PAIRS);
                for (i64 m = 0; m < rows; m += SIDE) {
                    f32* sums = all + m * SIDE;
                    multiply_tiles(sums, SIDE, left + m / LANES * step + first * TILE_SIZE, step,
                                   right + 2 * n * step + first * TILE_SIZE, step, {offsets, offsets},
                                   {.steps = some, .pairs = pairs, .rows = std::min(SIDE, rows - m),
                                    .onto = chunk ? sums : nullptr, .onto_row = SIDE});
                }
            }
            for (i64 m = 0; m < rows; ++m) {
                bf16* to = (bf16*)l.out + (m0 + m) * l.outputs + n * SIDE;
                for (i64 j = 0; j < std::min(SIDE, l.outputs - n * SIDE); j += LANES) {
                    const i64 here = l.outputs - n * SIDE - j;
                    F32s y = load(all + m * SIDE + j);
                    if (l.bias) y = y + load_some((const bf16*)l.bias + n * SIDE + j, here);
                    store_some(to + j, y, here);
                }
            }
        }
    });
}

}  // namespace propolis

#else

namespace propolis {

const char* matrix_instructions() { return ""; }
i64 packed_bytes(i64, i64) { return 0; }
void pack_weight(void*, const void*, i64, i64, int) {}
void unpack_weight(void*, const void*, i64, i64, int) {}
void linear_tiled(const Linear&) {}

}  // namespace propolis
#endif
