// Products of up to 16 rows of activations with weights in blocks, in integers on matrix instructions.  Activations are
// rounded to 16 bits, 256 neighbours with a scale, and multiplied as two planes of signed bytes; weights come to shared
// memory as they are stored, 256 of a row at a time, by a warp for itself.
#pragma once

#include "propolis_staged.h"
#include "propolis_steps.h"

// Rounded activations, of ROWS rows, those beyond the last 0: for each group of 32, row, and quarter of both sixteens
// the upper bytes of these and the lower ones.  One group more of each CHUNK are its sixteens' sums of upper bytes, and of
// lower ones: quotients by SUMS in place of the first sixteen, what is left in place of the second.  And of each chunk and
// row the largest magnitude, which is LARGEST.
struct RoundedRows {
    static constexpr int GROUPS = CHUNK / PART, GROUP_WORDS = 2 * PART / 4, SUMS = 64;
    u32* words;
    f32* most;

    PROPOLIS_METHOD RoundedRows(u32* at, i64 chunks, int rows)
        : words(at), most((f32*)(at + chunks * (GROUPS + 1) * rows * GROUP_WORDS)) {}
    PROPOLIS_METHOD u32* group(i64 chunk, int group, int rows) const {
        return words + (chunk * (GROUPS + 1) + group) * rows * GROUP_WORDS;
    }
};

constexpr u32 EACH_1 = 0x01010101;

PROPOLIS_FN i32 sum_of_bytes(const Pack<u32, 2>& words) {
    return dot_bytes(words.at[0], EACH_1, dot_bytes(words.at[1], EACH_1, 0));
}

// A chunk of a row is for 32 threads.
PROPOLIS_FN void round_rows(u32* out, const f32* x, i64 m, i64 depth, i64 chunks, int rows) {
    constexpr int THREADS = CHUNK / RUN;
    const i64 item = (block_x() * (i64)BLOCK + thread_x()) / THREADS;
    const int lane = (int)thread_x() % THREADS, row = (int)(item % rows);
    const i64 chunk = item / rows;
    const RoundedRows to(out, chunks, rows);
    const i64 k = chunk * CHUNK + lane * RUN;
    f32 own[RUN] = {};
    if (row < m && k < depth) load_run(x + row * depth + k, own);
    f32 top = 0;
#pragma unroll
    for (int i = 0; i < RUN; ++i) top = larger_or_nan(top, math::fabs(own[i]));
#pragma unroll
    for (int mask = 1; mask < THREADS; mask *= 2) top = larger_or_nan(top, warp_shfl_xor(top, mask));
    Pack<u32, 2> upper, lower;
    rounded_bytes(own, top, upper, lower);
    i32 of_upper = sum_of_bytes(upper), of_lower = sum_of_bytes(lower);
    of_upper += warp_shfl_xor(of_upper, 1), of_lower += warp_shfl_xor(of_lower, 1);
    if (chunk >= chunks) return;
    const auto of_group = [&](int group) {
        return to.group(chunk, group, rows) + row * RoundedRows::GROUP_WORDS;
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int four = lane % 4 * 2 + i;
        u32* place = of_group(lane / 4) + four % 4 * 4 + four / 4;
        place[0] = upper.at[i], place[2] = lower.at[i];
    }
    // Of a pair of lanes one has the sum of its sixteen's upper bytes, the other that of the lower ones.
    const i32 sum = lane % 2 ? of_lower : of_upper, above = (sum + RoundedRows::SUMS / 2) >> 6;
    i8* place = (i8*)(of_group(RoundedRows::GROUPS) + lane / 8 * 4 + lane % 2 * 2) + lane / 2 % 4;
    place[0] = (i8)above, place[4] = (i8)(sum - above * RoundedRows::SUMS);
    if (lane == 0) to.most[chunk * rows + row] = most_or_nan(top);
}

#if PROPOLIS_FRAGMENTS
// Of formats of 256: whether a scale is that of sixteen, not of 32.
template <class Format>
constexpr bool SIXTEENS = false;
template <>
constexpr bool SIXTEENS<Q6_K> = true;
// And whether a multiple of activations' sums is taken from products.
template <class Format>
constexpr bool LEAST = Format::shifted&& Format::SIZE == CHUNK;
// Whether weights times their whole scales are signed bytes (1), or times these with the other sign (-1).
template <class Format>
constexpr int BY_BYTES = 0;
template <>
constexpr int BY_BYTES<Q2_K> = 1;
template <>
constexpr int BY_BYTES<Q3_K> = -1;
template <>
constexpr int BY_BYTES<Q8_K> = 1;
template <>
constexpr int BY_BYTES<TQ1_0> = 1;
template <>
constexpr int BY_BYTES<TQ2_0> = 1;
// What signed bytes are, where they are not weights: as many times (propolis_blocks.h).
template <class Format>
constexpr int TIMES = 1;
template <>
constexpr int TIMES<Q4_0> = Q4_0::UPPER;
template <>
constexpr int TIMES<Q5_0> = Q5_0::UPPER;
template <>
constexpr int TIMES<Q6_K> = Q6_K::UPPER;
// Whether scales of 32 are that large, or small, that a whole sum times one may be no number: it is divided by LARGEST
// before.
template <class Format>
constexpr bool FAR = false;
template <>
constexpr bool FAR<MXFP4> = true;

// How ROWS of activations are columns of products: where there is room the upper bytes are, and the lower ones beside
// them; else there are two products.
template <int ROWS>
struct Columned {
    static constexpr bool SIDE_BY_SIDE = ROWS * 2 <= COLUMNS;
    static constexpr int PLANES = SIDE_BY_SIDE ? 1 : 2;
    static constexpr int TILES = SIDE_BY_SIDE ? 1 : ROWS / COLUMNS;
    PROPOLIS_METHOD static int row(int tile, int column) {
        return SIDE_BY_SIDE ? column % (COLUMNS / 2) % ROWS : tile * COLUMNS + column;
    }
    PROPOLIS_METHOD static bool lower(int column) { return !SIDE_BY_SIDE || column >= COLUMNS / 2; }
};

// A thread's part of a group of rounded activations.
template <int ROWS>
struct GroupOf {
    typedef Columned<ROWS> C;
    static constexpr int WORDS = ROWS * RoundedRows::GROUP_WORDS;
    ByteQuarters at[C::TILES][C::PLANES];  // upper bytes, lower ones

    // Where the thread's part of the first group is.
    PROPOLIS_FN u32 first(int t) {
        const int lower = C::SIDE_BY_SIDE && C::lower(own_column()) ? 2 : 0;
        return (u32)(C::row(t, own_column()) * RoundedRows::GROUP_WORDS + quarter(0) * 4 + lower);
    }
    PROPOLIS_METHOD void load(const u32* const (&of_tiles)[C::TILES], int group) {
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
            for (int q = 0; q < QUARTERS; ++q) {
                const u32* from = of_tiles[t] + group * WORDS + q * 4;
                if constexpr (C::SIDE_BY_SIDE) {
                    const Pack<u32, 2> pack = load_pack<2>(from);
                    at[t][0].low[q] = pack.at[0], at[t][0].high[q] = pack.at[1];
                } else {
                    const Pack<u32, 4> pack = load_pack<4>(from);
                    at[t][0].low[q] = pack.at[0], at[t][0].high[q] = pack.at[1];
                    at[t][1].low[q] = pack.at[2], at[t][1].high[q] = pack.at[3];
                }
            }
        }
    }
};

// Four weights times a number, as signed bytes.
template <class Format, class Block>
PROPOLIS_FN u32 signed_word(Block block, int four, int times = 1) {
    if constexpr (TIMES<Format> > 1) {
        return Format::upper(block, four);
    } else {
        constexpr int less = Format::less(true);
        const u32 word = Format::template word<true>(block, four) * (u32)times;
        return less ? (word + (u32)(128 - less * times) * EACH_1) ^ EACH_128 : word;
    }
}

// Products of a chunk with formats of 32, by which each group's are scaled.
template <class Format, int ROWS, bool whole = Format::SIZE == CHUNK>
struct OfChunk {
    typedef Columned<ROWS> C;
    f32 sums[C::TILES][ByteSums::COUNT] = {};

    template <class Block>
    PROPOLIS_METHOD void add(const Block (&rows)[OWN_ROWS], int group, const GroupOf<ROWS>& x) {
        ByteQuarters own[OWN_ROWS], ones[OWN_ROWS];
        Stored scales[OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const Block block = rows[i] + group * Format::BYTES;
#pragma unroll
            for (int q = 0; q < QUARTERS; ++q) {
                own[i].low[q] = signed_word<Format>(block, quarter(q));
                own[i].high[q] = signed_word<Format>(block, 4 + quarter(q));
                ones[i].low[q] = ones[i].high[q] = EACH_1;
            }
            Format::scales(block, 0, scales[i]);
        }
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
            ByteSums part[C::PLANES], totals[C::PLANES];
#pragma unroll
            for (int p = 0; p < C::PLANES; ++p) {
                part[p].begin(C::SIDE_BY_SIDE);
                part[p].add(own, x.at[t][p]);
                totals[p].begin(C::SIDE_BY_SIDE);
                if constexpr (Format::shifted) totals[p].add(ones, x.at[t][p]);
            }
#pragma unroll
            for (int i = 0; i < ByteSums::COUNT; ++i) {
                const Stored& by = scales[ByteSums::of_row(i)];
                const f32 sum = joined(part, i);
                sums[t][i] += by.scale * (FAR<Format> ? sum * (1 / LARGEST) : sum);
                // All rows have the same totals.
                if constexpr (Format::shifted) sums[t][i] += by.shift * joined(totals, i % ByteSums::OF_COLUMNS);
            }
        }
    }
    PROPOLIS_FN f32 joined(const ByteSums (&planes)[C::PLANES], int i) {
        if constexpr (C::SIDE_BY_SIDE) return planes[0].number(i);
        return (f32)(planes[0].at[i] * 256 + planes[C::PLANES - 1].at[i]);
    }
    // What comes behind is not to be computed before, nor this later.
    PROPOLIS_METHOD void in_order() {
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
            for (int i = 0; i < ByteSums::COUNT; ++i) kept_here(sums[t][i]);
        }
        ::in_order();
    }
    // Times a number.
    template <class Block>
    PROPOLIS_METHOD f32 sum(const Block (&)[OWN_ROWS], int t, int i, f32 by) const {
        return sums[t][i] * by;
    }
};

// And with formats of 256, whose scales of groups are whole numbers: so are sums.
template <class Format, int ROWS>
struct OfChunk<Format, ROWS, true> {
    typedef Columned<ROWS> C;
    static constexpr int SIGN = BY_BYTES<Format>;
    ByteSums sums[C::TILES][C::PLANES] = {};
    f32 less[C::TILES][ByteSums::COUNT];

    template <class Block>
    PROPOLIS_METHOD void add(const Block (&rows)[OWN_ROWS], int group, const GroupOf<ROWS>& x) {
        ByteQuarters own[OWN_ROWS];
        i32 whole[OWN_ROWS][2];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            Format::wholes(rows[i], group, whole[i]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                auto& bytes = half ? own[i].high : own[i].low;
#pragma unroll
                for (int q = 0; q < QUARTERS; ++q) {
                    const int four = group * (PART / 4) + half * 4 + quarter(q);
                    bytes[q] = signed_word<Format>(rows[i], four, SIGN ? SIGN * whole[i][half] : 1);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
            for (int p = 0; p < C::PLANES; ++p) {
                const ByteQuarters& at = x.at[t][p];
                if constexpr (SIGN != 0) {
                    sums[t][p].add(own, at);
                } else if constexpr (SIXTEENS<Format>) {
                    ByteSums low = {}, high = {};
                    low.template add_half<0>(own, at);
                    high.template add_half<1>(own, at);
                    add(sums[t][p], low, whole, 0);
                    add(sums[t][p], high, whole, 1);
                } else {
                    ByteSums part = {};
                    part.add(own, at);
                    add(sums[t][p], part, whole, 0);
                }
            }
        }
    }
    PROPOLIS_METHOD void in_order() {
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
            for (int p = 0; p < C::PLANES; ++p) {
#pragma unroll
                for (int i = 0; i < ByteSums::COUNT; ++i) kept_here(sums[t][p].at[i]);
            }
        }
        ::in_order();
    }
    // The sixteens' `least` times their activations' sums.
    template <class Block>
    PROPOLIS_METHOD void least(const Block (&rows)[OWN_ROWS], const GroupOf<ROWS>& x) {
        ByteQuarters own[OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
#pragma unroll
            for (int q = 0; q < QUARTERS; ++q) own[i].low[q] = own[i].high[q] = Format::leasts(rows[i], quarter(q));
        }
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
            ByteSums taken[C::PLANES];
#pragma unroll
            for (int p = 0; p < C::PLANES; ++p) {
                ByteSums above = {};
                above.template add_half<0>(own, x.at[t][p]);
#pragma unroll
                for (int i = 0; i < ByteSums::COUNT; ++i) taken[p].at[i] = above.at[i] * RoundedRows::SUMS;
                taken[p].template add_half<1>(own, x.at[t][p]);
            }
#pragma unroll
            for (int i = 0; i < ByteSums::COUNT; ++i) less[t][i] = joined(taken, i);
        }
    }
    PROPOLIS_FN void add(ByteSums& to, const ByteSums& part, const i32 (&whole)[OWN_ROWS][2], int half) {
#pragma unroll
        for (int i = 0; i < ByteSums::COUNT; ++i) to.at[i] += product_of_24(part.at[i], whole[ByteSums::of_row(i)][half]);
    }
    PROPOLIS_FN f32 joined(const ByteSums (&planes)[C::PLANES], int i) {
        const f32 first = (f32)planes[0].at[i];
        return C::SIDE_BY_SIDE ? first : first * 256 + (f32)planes[C::PLANES - 1].at[i];
    }
    template <class Block>
    PROPOLIS_METHOD f32 sum(const Block (&rows)[OWN_ROWS], int t, int i, f32 by) const {
        const Block block = rows[ByteSums::of_row(i)];
        const f32 unit = Format::unit(block), whole = joined(sums[t], i);
        if constexpr (Format::shifted) return (unit * whole - Format::least_unit(block) * less[t][i]) * by;
        return unit * (whole * by);  // a unit may be an f32, and as large
    }
};

// What whole sums are to be multiplied by, beside scales; where these are far they were before.
template <class Format>
constexpr f32 UNIT = FAR<Format> ? 1.0f : (BY_BYTES<Format> < 0 ? -1.0f : 1.0f) / (LARGEST * TIMES<Format>);

// So many groups of activations are on their way at once (0: each is loaded as it is multiplied), and so many are computed
// together: as registers allow.
template <int ROWS>
#if defined(PROPOLIS_MMA)
constexpr int GROUPS_ON_WAY = ROWS <= 8 ? 9 : 0;
#elif defined(PROPOLIS_WMMA)
constexpr int GROUPS_ON_WAY = ROWS <= 8 ? 9 : 4;
#else
constexpr int GROUPS_ON_WAY = 9;
#endif
#if defined(PROPOLIS_MFMA)
constexpr int IN_ORDER = 2;
#else
constexpr int IN_ORDER = 1;
#endif

// A block has 16 rows of weights at a time, a tile.
template <class Format, int ROWS>
PROPOLIS_FN void product_of_bytes(f32* out, const u32* rounded, const u8* w, i64 m, i64 n, i64 depth, i64 row_bytes,
                                  i64 pieces) {
    typedef Columned<ROWS> C;
    constexpr int WIDE = C::TILES * COLUMNS;
    PROPOLIS_DYNAMIC_SHARED(u8, shared);
    Staged<Format> weights(shared, w, depth, row_bytes, (int)pieces);
    const i32 chunks = weights.chunks, first = weights.warp;
    const RoundedRows x((u32*)rounded, chunks, ROWS);
    const i32 tiles = (i32)((n + FRAGMENT - 1) / FRAGMENT), step = (i32)blocks_x();
    // The warps' sums of so many tiles, behind weights that are on their way.
    constexpr int JOINED = SLOTS == 1 ? 1 : ROWS <= 8 ? 4 : 2, TALL = FRAGMENT + 4;  // lest they share banks
    constexpr int EACH = WARPS_OF_BLOCK * WIDE * TALL;
    f32* const joined = (f32*)(shared + (SLOTS > 1 ? WARPS_OF_BLOCK * SLOTS * FRAGMENT * weights.room : 0));
    int held = 0;
    i32 tile = (i32)block_x();
    i32 rows = (i32)n - tile * FRAGMENT;  // from the tile's first on
    u32 of_lane[C::TILES];                // of the warp's first chunk
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
        of_lane[t] = kept((u32)(x.group(first, 0, ROWS) - x.words) + GroupOf<ROWS>::first(t));
    }
    weights.go_on(tile);
    if (first < chunks) weights.request(first, rows);
    for (; tile < tiles; tile += step) {
        const bool last = tile + step >= tiles;
        f32 sums[C::TILES][ByteSums::COUNT] = {};
        const u32* at[C::TILES];
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) at[t] = x.words + of_lane[t];
        for (i32 chunk = first; chunk < chunks; chunk += WARPS_OF_BLOCK) {
            constexpr int LOADS = RoundedRows::GROUPS + (LEAST<Format> ? 1 : 0);
            constexpr int ON_WAY = GROUPS_ON_WAY<ROWS> < LOADS ? GROUPS_ON_WAY<ROWS> : LOADS;
            // After so many groups the next weights are asked for: where they come to registers, loads arrive in the order
            // in which they are asked for, and activations have to be before.
            constexpr int BEFORE = SLOTS > 1 ? 0 : LOADS - ON_WAY;
            constexpr int HELD = ON_WAY ? ON_WAY : 1;
            GroupOf<ROWS> here[HELD];
            f32 most[C::TILES][ByteSums::OF_COLUMNS];
            const auto load_most = [&] {
#pragma unroll
                for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
                    for (int i = 0; i < ByteSums::OF_COLUMNS; ++i) {
                        most[t][i] = x.most[(u32)(chunk * ROWS + C::row(t, ByteSums::of_column(i)))];
                    }
                }
            };
            if constexpr (SLOTS == 1) load_most();
#pragma unroll
            for (int group = 0; group < ON_WAY; ++group) here[group].load(at, group);
            weights.arrive();
            Near<Staged<Format>::EVEN> own[OWN_ROWS];
#pragma unroll
            for (int i = 0; i < OWN_ROWS; ++i) own[i] = weights.own(i, chunk);
            const bool more = chunk + WARPS_OF_BLOCK < chunks;
            const auto request = [&] {
                if (!more && !last) weights.go_on(step), rows -= step * FRAGMENT;
                if (more || !last) weights.request(more ? chunk + WARPS_OF_BLOCK : first, rows);
            };
            if constexpr (BEFORE == 0) request();
            OfChunk<Format, ROWS> of_chunk;
#pragma unroll
            for (int group = 0; group < LOADS; ++group) {
                auto& loaded = here[group % HELD];
                if (ON_WAY == 0) loaded.load(at, group);
                if constexpr (LEAST<Format>) {
                    if (group == RoundedRows::GROUPS) {
                        of_chunk.least(own, loaded);
                        break;
                    }
                }
                of_chunk.add(own, group, loaded);
                if (group % IN_ORDER == IN_ORDER - 1) of_chunk.in_order();
                if (ON_WAY > 0 && group + ON_WAY < LOADS) loaded.load(at, group + ON_WAY);
                if (group + 1 == BEFORE) request();
            }
            if constexpr (SLOTS > 1) load_most();  // else there were too few registers
#pragma unroll
            for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
                for (int i = 0; i < ByteSums::COUNT; ++i) {
                    const int column = i % ByteSums::OF_COLUMNS;
                    const f32 by = UNIT<Format> * (C::lower(ByteSums::of_column(column)) ? 1 : 256);
                    sums[t][i] += of_chunk.sum(own, t, i, by) * most[t][column];
                }
                at[t] += WARPS_OF_BLOCK * (RoundedRows::GROUPS + 1) * GroupOf<ROWS>::WORDS;
            }
        }
        if constexpr (SLOTS == 1) __syncthreads();
#pragma unroll
        for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
            for (int i = 0; i < ByteSums::COUNT; ++i) {
                const int column = t * COLUMNS + ByteSums::of_column(i);
                joined[held * EACH + (first * WIDE + column) * TALL + own_row(ByteSums::of_row(i))] = sums[t][i];
            }
        }
        if (++held < JOINED && !last) continue;
        __syncthreads();
        for (int i = (int)thread_x(); i < held * FRAGMENT * ROWS; i += BLOCK) {
            const int which = i / (FRAGMENT * ROWS), column = i / FRAGMENT % ROWS;
            f32 sum = 0;
#pragma unroll
            for (int warp = 0; warp < WARPS_OF_BLOCK; ++warp) {
                const f32* at = joined + which * EACH + (warp * WIDE + column) * TALL + i % FRAGMENT;
                sum += at[0];
                if constexpr (C::SIDE_BY_SIDE) sum += at[COLUMNS / 2 * TALL];  // of the other plane
            }
            const i64 to = (i64)(tile - (held - 1 - which) * step) * FRAGMENT + i % FRAGMENT;
            if (to < n && column < m) out[column * n + to] = sum;
        }
        __syncthreads();
        held = 0;
    }
}
#endif
