// The same tiles by groups of four warps (propolis_groups.h): weights are unpacked into registers, from where the
// instructions take them as they would from shared memory; activations lie there, in the order in which threads
// have weights.  They are put in that order as they are rounded, so a stage of a tile is one run of memory.
#pragma once

#include "propolis_block_tiles.h"
#include "propolis_groups.h"

#if !defined(PROPOLIS_AMD)
// Packs of 16 bytes of a row of a stage.
constexpr int STAGE_PACKS = DEEP / COPIED;
constexpr int HALF_PACKS = ROW_BYTES / 16;
static_assert(DEEP == 2 * DEPTHS && DEEP == 4 * STRETCH, "a stage is not two rows of operands");

// Rounds rows, which follow each other, for tiles of M of them: as (tile, stage, half of it, row, pack), zeros where there
// is nothing.  Of a half's packs the one at 4 r + p has from each quarter of a stage, of its run r, the p-th pair.
PROPOLIS_FN void arrange_rows(bf16* to, const f32* x, i64 m, i64 depth, i64 rows) {
    const i64 which = (i64)block_x() * BLOCK + thread_x();
    const i64 stages = (depth + CHUNK - 1) / CHUNK * (CHUNK / DEEP), down = (m + rows - 1) / rows;
    if (which >= down * stages * rows * STAGE_PACKS) return;
    const int pack = (int)(which % HALF_PACKS);
    const i64 within = which / HALF_PACKS % rows, half = which / HALF_PACKS / rows % 2;
    const i64 stage = which / (rows * STAGE_PACKS) % stages, tile = which / (rows * STAGE_PACKS) / stages;
    const i64 row = tile * rows + within;
    const i64 first = stage * DEEP + (half * 2 + pack / 4) * RUN + pack % 4 * 2;
    Pack<bf16, COPIED> made;
#pragma unroll
    for (int e = 0; e < COPIED; ++e) {
        const i64 at = first + e / 2 * STRETCH + e % 2;
        made.at[e] = narrow<bf16>(row < m && at < depth ? x[row * depth + at] : 0.0f);
    }
    store_pack<COPIED>(to + (which - pack) * COPIED + (pack ^ (int)(within % 8)) * COPIED, made);
}

#endif

#if PROPOLIS_WGMMA
static_assert(X_STAGES == 3, "one is multiplied, one is next, one on its way");
static_assert(ALIGNED == ALIGNED_TO, "Python leaves other room for operands to be aligned in");

template <class Format, int M>
PROPOLIS_FN void product_of_groups(f32* out, const bf16* x, const u8* w, i64 m, i64 n, i64 depth, i64,
                                   i64 row_bytes, i64 chunks, i64 first) {
    typedef BlockPanel<Format> Blocks;
    static_assert(TALL == 1 && HALF_PACKS == 2 * GROUP_RUNS, "a warp has 16 rows, a group of runs is a stage");
    constexpr int STAGE_NUMBERS = M * DEEP, HALVES = CHUNK / DEEP;
    // Where one block has all registers it unpacks while it multiplies; of two, for which most formats leave room, one
    // multiplies while the other unpacks.
    constexpr int AHEAD = M > 64;
    PROPOLIS_DYNAMIC_SHARED(bf16, bytes);
    bf16* const shared = aligned_operands(bytes);
    u8* const slots = (u8*)(shared + X_STAGES * STAGE_NUMBERS);
    const PartOfTile own(M, m, n, depth, chunks, first);
    const i64 i0 = own.place.i * M, j0 = own.place.j * TILE_ROWS;
    const i32 c0 = own.c0, rest = own.rest;
    const i32 there = (rest + CHUNK - 1) / CHUNK, all = there < (i32)chunks ? there : (i32)chunks;
    Blocks weights(w, j0, n, depth, row_bytes);
    const bf16* from = x + (own.place.i * ((depth + CHUNK - 1) / CHUNK) + c0) * HALVES * STAGE_NUMBERS;
    from += (i32)thread_x() * COPIED;
    const auto copy = [&](i32 t) {
        bf16* const to = shared + t % X_STAGES * STAGE_NUMBERS + (i32)thread_x() * COPIED;
#pragma unroll
        for (int p = 0; p < STAGE_NUMBERS; p += BLOCK * COPIED) copy_async(to + p, from + p, 16);
        from += STAGE_NUMBERS;
    };
    const auto slot = [&](i32 c) { return slots + c % BUFFERS * (TILE_ROWS * Blocks::ROOM); };
    const u64 columns = operand_at<false>(shared);
    Sums sums[TALL][M / FRAGMENT] = {};
    HeldWords left[1 + AHEAD][GROUP_RUNS];
    const auto unpack = [&](HeldWords (&to)[GROUP_RUNS], i32 chunk, int h) {
        Group stored;
        const u32 k = (u32)(h * DEEP);
#pragma unroll
        for (int i = 0; i < RUNS_HELD; ++i) {
            const u32 begin = (u32)Held<bf16>::depth(i) / RUN * STRETCH;
            stored.load(weights, slot(chunk), 0, i, c0 + chunk, k, begin, rest - chunk * CHUNK - (i32)k);
        }
#pragma unroll
        for (int r = 0; r < GROUP_RUNS; ++r) {
            Held<bf16> made;
            stored.template unpack<Format>(made, r);
            to[r].keep(made);
        }
    };
    const auto multiply = [&](const HeldWords& run, int r, i32 t) {
        const u64 half = columns + (u32)(t % X_STAGES * (STAGE_NUMBERS * 2 / 16)) + r / 2 * (M * ROW_BYTES / 16);
#pragma unroll
        for (int k = 0; k < 2; ++k) multiply_held(sums[0], run, k, half + (r % 2 * 2 + k) * DEPTHS_APART<false>);
    };
    // What is next but one.
    const auto bring = [&](i32 chunk, int h) {
        const i32 next = chunk + 1 + AHEAD;
        if (h == AHEAD && next < all) weights.copy(slot(next), c0 + next);
        if (chunk + 1 < all) copy(chunk * HALVES + h + 2);
        end_of_stage();
    };
    weights.copy(slot(0), c0);
    copy(0);
    end_of_stage();
    if (AHEAD && all > 1) weights.copy(slot(1), c0 + 1);
    copy(1);
    end_of_stage();
    if (AHEAD) {
        wait_for_stage(3);
        __syncthreads();
        unpack(left[0], 0, 0);
    }
    for (i32 chunk = 0; chunk < all; ++chunk) {
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            wait_for_stage(3);
            show_to_products();
            __syncthreads();
            if (!AHEAD) {
                bring(chunk, h);
                unpack(left[0], chunk, h);
            }
            begin_products();
#pragma unroll
            for (int r = 0; r < GROUP_RUNS; ++r) multiply(left[AHEAD * h][r], r, chunk * HALVES + h);
            end_of_products();
            if (AHEAD) {
                bring(chunk, h);
                if (h == 0 || chunk + 1 < all) unpack(left[AHEAD * (1 - h)], chunk + h, 1 - h);
            }
            wait_for_products<0>();
        }
    }
    store_sums<M>(out + own.part * m * n, sums, i0, j0, m, n);
}
#endif
