// Products with weights in blocks, repacked as tiles.h says.
#include "activations.h"
#include "kernels.h"
#include "pool.h"
#include "room.h"
#include "tiles.h"

namespace propolis {
namespace {

// Memory that a thread keeps for its next call.
template <class T>
T* room(i64 count) {
    thread_local Room<T> memory;
    return memory.of(count);
}

}  // namespace

const Format* format_named(const char* name) {
    for (const auto& formats : {formats_of_32(), formats_of_256()}) {
        for (const Format& format : formats) {
            if (std::strcmp(format.name, name) == 0) return &format;
        }
    }
    return nullptr;
}

void multiply(Product p, bool exact) {
    const Format& f = *p.format;
    if (p.k == 0) {
        std::memset(p.out, 0, p.m * p.n * size_of(p.kind));
        return;
    }
    const i64 tiles = (p.n + TILE - 1) / TILE;
    const int preparing = p.m * p.k > 8000 ? p.threads : 1;
    if (exact && p.kind == Kind::F32) {
        p.wide = (const f32*)p.x;
    } else if (exact) {
        f32* wide = room<f32>(p.m * p.k);
        parallel(preparing, p.m, [&](i64 m) {
            with_type(p.kind, [&](auto type) {
                const auto* x = (const decltype(type)*)p.x + m * p.k;
                for (i64 i = 0; i < p.k; i += LANES) store(wide + m * p.k + i, load_wide(x + i));
            });
        });
        p.wide = wide;
    } else {
        const i64 grains = p.k / f.grain, scales = p.k / SUBBLOCK;
        f32* const numbers = room<f32>(p.m * (scales + grains));
        const Rounded all{room<i8>(2 * p.m * p.k), numbers, room<i32>(p.m * grains),
                          numbers + p.m * scales, room<u8>(p.m * scales)};
        // Of a panel, so many parts: who writes beside another thread waits for it.
        const i64 count = panels(p.m), pieces = preparing == 1 ? 1 : (2 * preparing + count - 1) / count;
        const i64 each = (scales + pieces - 1) / pieces;
        parallel(preparing, count * pieces, [&](i64 task) {
            const i64 from = task % pieces * each, to = from + each < scales ? from + each : scales;
            with_type(p.kind, [&](auto type) {
                round_some<decltype(type)>(p, all, panel(p.m, task / pieces), from, to);
            });
        });
        p.bytes = all.bytes;
        p.scales = all.scales;
        p.starts = all.starts;
        p.sums = all.sums;
        p.finer = all.finer;
    }
    const auto kernel = exact ? f.exact : f.fast;
    // Tasks of some ten microseconds: enough to share evenly, few enough to hand out.
    const i64 weight_bytes = p.k / f.block * f.tile;
    const i64 work = weight_bytes * (1 + p.m);
    constexpr i64 ROWS = 64, TASK = 1 << 16;
    const i64 row_parts = (p.m + ROWS - 1) / ROWS;
    i64 some = TASK / (weight_bytes * (1 + (p.m < ROWS ? p.m : ROWS) / MOST));
    const i64 fair = tiles / (2 * p.threads);
    some = some < 1 ? 1 : some;
    if (some > fair) some = fair < 1 ? 1 : fair;
    const i64 tile_parts = (tiles + some - 1) / some;
    const int threads = tiles * work < (1 << 15) ? 1 : p.threads;
    parallel(threads, tile_parts * row_parts, [&](i64 task) {
        const i64 t0 = task / row_parts * some, m0 = task % row_parts * ROWS;
        kernel(p, t0, t0 + some < tiles ? t0 + some : tiles, m0, m0 + ROWS < p.m ? m0 + ROWS : p.m);
    });
}

void repack(const Format& f, u8* tiles, const u8* blocks, i64 n, i64 k, int threads) {
    const i64 count = k / f.block, tile_bytes = count * f.tile, row_bytes = count * f.source;
    parallel(threads, (n + TILE - 1) / TILE, [&](i64 tile) {
        u8* to = tiles + tile * tile_bytes;
        std::memset(to, 0, tile_bytes);
        const i64 first = tile * TILE, rows = n - first < TILE ? n - first : TILE;
        for (i64 i = 0; i < count; ++i) {  // the part of a tile that all rows write stays in cache
            for (int row = 0; row < rows; ++row) {
                f.put(to + i * f.tile, row, blocks + (first + row) * row_bytes + i * f.source, 1);
            }
        }
    });
}

void unpack(const Format& f, u8* blocks, const u8* tiles, i64 n, i64 k, int threads) {
    const i64 count = k / f.block, tile_bytes = count * f.tile, row_bytes = count * f.source;
    parallel(threads, (n + TILE - 1) / TILE, [&](i64 tile) {
        for (int row = 0; row < TILE && tile * TILE + row < n; ++row) {
            f.get(blocks + (tile * TILE + row) * row_bytes, tiles + tile * tile_bytes, row, count);
        }
    });
}

}  // namespace propolis
