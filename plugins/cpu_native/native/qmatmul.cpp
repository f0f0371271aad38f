// Products with weights in blocks, repacked as tiles.h says.
#include <algorithm>
#include <utility>

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

void multiply(Product product, bool exact) { multiply(std::span(&product, 1), exact); }

void multiply(std::span<Product> all, bool exact) {
    const Product& one = all[0];  // in what they are alike
    const Format& f = *one.format;
    const i64 k = one.k;
    i64 rows = 0;
    for (const Product& p : all) rows += p.m;
    if (k == 0) {
        for (const Product& p : all) std::memset(p.out, 0, p.m * p.n * size_of(p.kind));
        return;
    }
    i64* const ends = room<i64>((i64)all.size());  // of each one's tasks
    const auto count = [&](auto&& tasks) {
        i64 sum = 0;
        for (size_t i = 0; i < all.size(); ++i) ends[i] = sum += tasks(all[i]);
        return sum;
    };
    // Whose a task is, and which of its own.
    const auto place = [&](i64 task) {
        const size_t i = std::upper_bound(ends, ends + all.size(), task) - ends;
        return std::pair(i, i ? task - ends[i - 1] : task);
    };
    const int preparing = rows * k > 8000 ? one.threads : 1;
    if (exact && one.kind == Kind::F32) {
        for (Product& p : all) p.wide = (const f32*)p.x;
    } else if (exact) {
        f32* wide = room<f32>(rows * k);
        for (Product& p : all) p.wide = wide, wide += p.m * k;
        parallel(preparing, count([](const Product& p) { return p.m; }), [&](i64 task) {
            const auto [i, row] = place(task);
            const Product& p = all[i];
            with_type(p.kind, [&](auto type) {
                const auto* x = (const decltype(type)*)p.x + row * k;
                for (i64 d = 0; d < k; d += LANES) store((f32*)p.wide + row * k + d, load_wide(x + d));
            });
        });
    } else {
        const i64 grains = k / f.grain, scales = k / SUBBLOCK;
        i8* bytes = room<i8>(2 * rows * k);
        f32 *numbers = room<f32>(rows * (scales + grains)), *sums = numbers + rows * scales;
        i32* starts = room<i32>(rows * grains);
        u8* finer = room<u8>(rows * scales);
        for (Product& p : all) {
            p.bytes = bytes, p.scales = numbers, p.starts = starts, p.sums = sums, p.finer = finer;
            bytes += 2 * p.m * k, numbers += p.m * scales, starts += p.m * grains, sums += p.m * grains;
            finer += p.m * scales;
        }
        // Of a panel, so many parts: who writes beside another thread waits for it.
        i64 panels_of_all = 0;
        for (const Product& p : all) panels_of_all += panels(p.m);
        const i64 pieces = preparing == 1 ? 1 : (2 * preparing + panels_of_all - 1) / panels_of_all;
        const i64 each = (scales + pieces - 1) / pieces;
        parallel(preparing, count([&](const Product& p) { return panels(p.m) * pieces; }), [&](i64 task) {
            const auto [i, own] = place(task);
            const Product& p = all[i];
            const Rounded to{(i8*)p.bytes, (f32*)p.scales, (i32*)p.starts, (f32*)p.sums, (u8*)p.finer};
            const i64 first = own % pieces * each, last = std::min(first + each, scales);
            with_type(p.kind, [&](auto type) {
                round_some<decltype(type)>(p, to, panel(p.m, own / pieces), first, last);
            });
        });
    }
    const auto kernel = exact ? f.exact : f.fast;
    // Tasks of some ten microseconds: enough to share evenly, few enough to hand out.
    const i64 tiles = (one.n + TILE - 1) / TILE, weight_bytes = k / f.block * f.tile;
    constexpr i64 TASK = 1 << 16;
    // Rows of a task, for which weights are taken apart once: fewer where threads would be left without a task.
    const i64 most_rows = tiles * rows / 128 >= 8 * one.threads ? 128 : 64;
    const i64 fair = std::max<i64>(1, tiles * (i64)all.size() / (2 * one.threads));
    // Tiles of a task.
    const auto some = [&](const Product& p) {
        const i64 fitting = TASK / (weight_bytes * (1 + std::min(p.m, most_rows) / MOST));
        return std::min({std::max<i64>(1, fitting), fair, tiles});
    };
    const auto row_parts = [&](const Product& p) { return (p.m + most_rows - 1) / most_rows; };
    const i64 tasks = count([&](const Product& p) { return (tiles + some(p) - 1) / some(p) * row_parts(p); });
    const i64 work = tiles * weight_bytes * ((i64)all.size() + rows);
    parallel(work < (1 << 15) ? 1 : one.threads, tasks, [&](i64 task) {
        const auto [i, own] = place(task);
        const Product& p = all[i];
        const i64 each = some(p), t0 = own / row_parts(p) * each, m0 = own % row_parts(p) * most_rows;
        kernel(p, t0, std::min(t0 + each, tiles), m0, std::min(m0 + most_rows, p.m));
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
