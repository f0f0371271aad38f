// Order along a dimension.  Semantics: core's propolis/ops/sort.py.  Rows of up to TILE elements are
// sorted in shared memory, several in a block where they are short; longer ones tile by tile, and the
// tiles are merged two and two, in memory that the host gives.  The best few of a long row are sought
// among the best few of each tile, which are selected and not sorted.
#include "propolis_elementwise.h"
#include "propolis_order.h"
#include "propolis_scan.h"

constexpr int ITEMS = TILE / BLOCK;

struct SortShape {
    i64 first;      // row of this launch
    i64 rows;       // of this launch
    i64 step;       // between elements of a row of x
    i64 keep;       // results of a row
    i64 keep_step;  // and between them
    i64 given;      // of a row: elements of x, or entries that tiles before have kept
    i64 parts;      // tiles of a row; 1 where a tile has several rows
    i64 kept;       // entries that each part keeps
    i32 kind;
    i32 descending;
    i32 bits;  // a tile is sorted in segments of 2**bits
    i32 reserved;
};

// Results are elements, or places, or both.
struct Sorting {
    u8* values;
    i64* indices;
    const u8* x;
    const SortShape& shape;
    const Strided2& layout;

    // Of a row: where it begins in x, and where its results do.
    PROPOLIS_METHOD Offsets<2> row(i64 number) const {
        return locate(again(layout), shape.first + number);
    }
    template <class E>
    PROPOLIS_METHOD E load(const Offsets<2>& row, i64 place) const {
        const u64 bits = load_bits(x, shape.kind, row.at[0] + place * shape.step);
        return E::of(bits, shape.kind, shape.descending != 0, place);
    }
    template <class E>
    PROPOLIS_METHOD void give(const Offsets<2>& row, const E& entry, i64 rank) const {
        if (rank >= shape.keep) return;
        const i64 to = row.at[1] + rank * shape.keep_step;
        const i64 from = row.at[0] + entry.place() * shape.step;
        if (indices) indices[to] = entry.place();
        if (values) copy_element(values, to, x, from, shape.kind);
    }
};

// Sorts segments of n entries, a power of two, each in itself (Batcher 1968).
template <class E>
PROPOLIS_FN void sort_segments(E* tile, int n) {
    for (int size = 2; size <= n; size *= 2) {
        for (int far = size / 2; far > 0; far /= 2) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < ITEMS / 2; ++i) {
                const int pair = i * BLOCK + (int)thread_x();
                const int low = (pair & -far) * 2 + (pair & (far - 1));
                // Runs go up and down by turns, so that two of them are one that can be merged.
                const bool up = size == n || (low & size) == 0;
                const E a = tile[low], b = tile[low + far];
                if (b.before(a) == up) {
                    tile[low] = b;
                    tile[low + far] = a;
                }
            }
        }
    }
    __syncthreads();
}

// From x, or from entries; to entries, or without these to results.
template <class E>
PROPOLIS_FN void sort_tiles(E* to, const E* from, const Sorting& p) {
    __shared__ E tile[TILE];
    const SortShape& shape = p.shape;
    const int bits = shape.bits;
    const i64 segments = shape.rows * shape.parts;
    const i64 each = TILE >> bits;
    for (i64 block = block_x(); block * each < segments; block += blocks_x()) {
        const i64 row = block / shape.parts;  // of a tile that is part of one
        const i64 begin = (block - row * shape.parts) * TILE;
        __syncthreads();  // the tile before is written
#pragma unroll 1
        for (int i = (int)thread_x(); i < TILE; i += BLOCK) {
            const i64 number = block * each + (i >> bits);
            const i64 own = each == 1 ? row : number;
            const i64 place = each == 1 ? begin + i : i & ((1 << bits) - 1);
            E entry = E::last();
            if (number < segments && place < shape.given) {
                entry = from ? from[own * shape.given + place] : p.load<E>(p.row(own), place);
            }
            tile[i] = entry;
        }
        sort_segments(tile, 1 << bits);
#pragma unroll 1
        for (int i = (int)thread_x(); i < TILE; i += BLOCK) {
            const i64 number = block * each + (i >> bits);
            const int rank = i & ((1 << bits) - 1);
            if (number >= segments || rank >= shape.kept) continue;
            if (to) {
                to[number * shape.kept + rank] = tile[i];
            } else {
                p.give(p.row(number), tile[i], rank);
            }
        }
    }
}

// How many of the first `count` entries of two sorted runs together are of the first one.
template <class E, class I>
PROPOLIS_FN I share_of_first(const E* a, I of_a, const E* b, I of_b, I count) {
    I least = count > of_b ? count - of_b : 0;
    I most = count < of_a ? count : of_a;
    while (least < most) {
        const I middle = (least + most) / 2;
        if (b[count - 1 - middle].before(a[middle])) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    return least;
}

// Runs of `run` entries are merged two and two, a tile of the result by each block (Green, McColl,
// Bader 2012).  The last pass, without `to`, gives results.
template <class E>
PROPOLIS_FN void merge_tiles(E* to, const E* from, const Sorting& p, i64 run) {
    __shared__ E tile[TILE];
    __shared__ u16 source[TILE];  // which of them is the next one of the result
    __shared__ i64 shares[2];
    const SortShape& shape = p.shape;
    const i64 padded = shape.parts * TILE;
    for (i64 block = block_x(); block < shape.rows * shape.parts; block += blocks_x()) {
        const i64 row = block / shape.parts;
        const i64 start = (block - row * shape.parts) * TILE;
        const i64 base = start / (2 * run) * (2 * run);
        const i64 middle = base + run < padded ? base + run : padded;
        const i64 end = base + 2 * run < padded ? base + 2 * run : padded;
        const E* a = from + row * padded + base;
        const E* b = from + row * padded + middle;
        __syncthreads();  // the tile before is written
        if (thread_x() < 2) {
            const i64 before = start - base + (i64)thread_x() * TILE;
            shares[thread_x()] = share_of_first<E, i64>(a, middle - base, b, end - middle, before);
        }
        __syncthreads();
        const i64 a0 = shares[0];
        const i64 b0 = start - base - a0;
        const int of_a = (int)(shares[1] - a0);
#pragma unroll 1
        for (int i = (int)thread_x(); i < TILE; i += BLOCK) {
            tile[i] = i < of_a ? a[a0 + i] : b[b0 + i - of_a];
        }
        __syncthreads();
        const int first = (int)thread_x() * ITEMS;
        int i = share_of_first<E, int>(tile, of_a, tile + of_a, TILE - of_a, first);
        int j = of_a + first - i;
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const bool ours = j >= TILE || (i < of_a && !tile[j].before(tile[i]));
            source[first + k] = (u16)(ours ? i : j);
            i += ours ? 1 : 0;
            j += ours ? 0 : 1;
        }
        __syncthreads();
        const Offsets<2> at = p.row(row);
#pragma unroll 1
        for (int k = (int)thread_x(); k < TILE; k += BLOCK) {
            const E entry = tile[source[k]];
            if (to) {
                to[row * padded + start + k] = entry;
            } else {
                p.give(at, entry, start + k);
            }
        }
    }
}

// The last of the first `keep` of `n` entries, which are more, digit by digit from the top: each
// counts those that have the digits found so far.
template <class F>
PROPOLIS_FN u64 last_of_first(int n, u32 keep, F entry) {
    __shared__ u32 counts[BLOCK];
    __shared__ u32 found[3];
    static_assert(BLOCK >= 256, "a thread has a digit");
    u64 least = ~0ull, most = 0;
    for (int i = (int)thread_x(); i < n; i += BLOCK) {
        const u64 own = entry(i);
        least = own < least ? own : least;
        most = own > most ? own : most;
    }
    least = block_reduce(least, ~0ull, [](u64 a, u64 b) { return a < b ? a : b; });
    most = block_reduce(most, (u64)0, [](u64 a, u64 b) { return a > b ? a : b; });
    int low = 56;  // of the first digit in which they differ
    while (low > 0 && (least ^ most) >> low == 0) low -= 8;
    u64 prefix = low < 56 ? least >> (low + 8) << (low + 8) : 0;
#pragma unroll 1
    for (;; low -= 8) {
        counts[thread_x()] = 0;
        __syncthreads();
#pragma unroll 1
        for (int i = (int)thread_x(); i < n; i += BLOCK) {
            const u64 apart = (entry(i) ^ prefix) >> low;
            if (apart < 256) count_up(&counts[(u32)apart]);
        }
        __syncthreads();
        const u32 own = counts[thread_x()];
        const u32 before = block_scan(own).before;
        if (before < keep && keep <= before + own) {
            found[0] = thread_x();
            found[1] = before;
            found[2] = own;
        }
        __syncthreads();
        prefix |= (u64)found[0] << low;
        keep -= found[1];
        if (low == 0 || keep == found[2]) return prefix | (((u64)1 << low) - 1);
        __syncthreads();  // what was found is read
    }
}

// The first few of each tile of FEW_TILE, from x or from entries: to entries, in any order, or
// where there is one tile to results.
PROPOLIS_KERNEL sort_few(ShortEntry* to, const ShortEntry* from, u8* values, i64* indices,
                         const u8* x, SortShape all, Strided2 rows) {
    __shared__ u64 tile[FEW_TILE];
    __shared__ u64 first[FEW];
    __shared__ u32 taken;
    const u32 keep = (u32)all.kept;
    for (i64 block = block_x(); block < again(all).rows * again(all).parts; block += blocks_x()) {
        const SortShape& shape = again(all);
        const Sorting p{values, indices, x, shape, rows};
        const i64 row = block / shape.parts;
        const i64 begin = (block - row * shape.parts) * FEW_TILE;
        const int n = (int)(shape.given - begin < FEW_TILE ? shape.given - begin : FEW_TILE);
        const Offsets<2> at = p.row(row);
        __syncthreads();  // the tile before is written
        if (thread_x() == 0) taken = 0;
#pragma unroll 2
        for (int i = (int)thread_x(); i < n; i += BLOCK) {
            tile[i] = from ? from[row * shape.given + begin + i].both
                           : p.load<ShortEntry>(at, begin + i).both;
        }
        __syncthreads();
        const u64 last = (u32)n > keep ? last_of_first(n, keep, [&](int i) { return tile[i]; })
                                       : ~0ull;
#pragma unroll 1
        for (int i = (int)thread_x(); i < n; i += BLOCK) {
            if (tile[i] > last || tile[i] == ~0ull) continue;  // these fill up what tiles give
            first[count_up(&taken)] = tile[i];
        }
        __syncthreads();
        const u32 count = taken;
#pragma unroll 1
        for (u32 i = thread_x(); i < keep; i += BLOCK) {
            const u64 own = i < count ? first[i] : ~0ull;
            if (to) {
                to[block * keep + i].both = own;
            } else if (i < count) {
                u32 rank = 0;
#pragma unroll 4
                for (u32 j = 0; j < count; ++j) rank += first[j] < own ? 1 : 0;
                p.give(at, ShortEntry{own}, rank);
            }
        }
    }
}

#define SORTED(name, E)                                                                         \
    PROPOLIS_KERNEL sort_tiles_##name(E* to, const E* from, u8* values, i64* indices,           \
                                      const u8* x, SortShape shape, Strided2 rows) {            \
        sort_tiles<E>(to, from, Sorting{values, indices, x, shape, rows});                      \
    }                                                                                           \
    PROPOLIS_KERNEL sort_merge_##name(E* to, const E* from, u8* values, i64* indices,           \
                                      const u8* x, SortShape shape, i64 run, Strided2 rows) {   \
        merge_tiles<E>(to, from, Sorting{values, indices, x, shape, rows}, run);                \
    }
SORTED(short, ShortEntry)
SORTED(long, LongEntry)
