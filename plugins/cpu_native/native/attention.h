// What kernels of attention have in common: where queries, keys and values lie, who sees whom, and in which order
// few and many queries add.
#pragma once

#include <algorithm>

#include "kernels.h"

namespace propolis {

struct Sequence {
    i64 index, row, first, tokens, valid;
};

inline Sequence sequence_at(const Attention& a, i64 index) {
    Sequence s{index, index, 0, a.q.shape[1], 0};
    if (a.q_start) s = {index, 0, a.q_start[index], a.q_start[index + 1] - a.q_start[index], 0};
    s.valid = a.kv_len ? a.kv_len[index] : a.table ? a.blocks * a.k.shape[1] : a.k.shape[1];
    return s;
}

// A byte of a row in q8_0: blocks of 32 numbers, a scale before them.
struct Q8 {
    u8 byte;
};
constexpr i64 Q8_BLOCK = 32, Q8_BYTES = 34;

// How many of K a row of so many numbers has.
template <class K>
constexpr i64 extent(i64 dim) {
    return std::is_same_v<K, Q8> ? dim / Q8_BLOCK * Q8_BYTES : dim;
}
// Numbers from the i-th of a row on, those beyond `left` as 0; i is a multiple of 16.
template <class K>
PROPOLIS_INLINE F32s kept_at(const K* row, i64 i, i64 left) {
    return load_some(row + i, left);
}
template <>
PROPOLIS_INLINE F32s kept_at(const Q8* row, i64 i, i64) {  // whole blocks: there are always sixteen
    const u8* block = (const u8*)row + i / Q8_BLOCK * Q8_BYTES;
    f16 scale;
    std::memcpy(&scale, block, sizeof scale);
    return as_floats(load_widened((const i8*)block + sizeof scale + i % Q8_BLOCK)) * splat(wide(scale));
}

// Rows of keys or values of a sequence and head.
template <class T>
struct Rows {
    const T* at;
    const i32* table;
    i64 page, row, size;

    Rows(const Attention& a, const View& v, const Sequence& s, i64 head) {
        at = (const T*)v.at + head * v.strides[2];
        table = a.table ? a.table + s.index * a.blocks : nullptr;
        page = v.strides[0];
        row = v.strides[1];
        size = v.shape[1];
        if (!table) at += s.index * page;
    }
    PROPOLIS_INLINE const T* operator[](i64 key) const {
        if (!table) return at + key * row;
        const u32 k = (u32)key, n = (u32)size;  // of 32 bits: divided in half the time
        return at + table[k / n] * page + k % n * row;
    }
};

struct Range {
    i64 first, end;
};
// Keys that some query at a position from `low` to `high` sees.
inline Range seen(const Attention& a, i64 valid, i64 low, i64 high) {
    Range r{0, valid};
    if (a.left >= 0) r.first = std::max<i64>(0, low - a.left);
    if (a.right >= 0) r.end = std::min(valid, high + a.right + 1);
    return r;
}

inline f32 capped(f32 score, f32 cap) { return cap == 0 ? score : cap * __builtin_tanhf(score / cap); }

inline i64 padded(i64 n) { return (n + LANES - 1) / LANES * LANES; }

// Few queries and many: the same numbers are added in the same order, so that a query gets the same bits however many
// others its sequence or batch has: what a prompt leaves does not depend on where it was parted.  (Many queries
// multiply by 0 what is hidden from some: an infinity there makes NaN, which it does not beside few.)  A score is
// sixteen sums, of each sixteenth product, put on each other as `sum` does; keys go in parts, of the same
// positions for all queries, with their own largest score, and one part after the other is added to those before.

constexpr i64 PART = 64;  // keys looked at together, from a multiple of it on
constexpr i64 LINE = 16;  // numbers that memory brings together

// The end of the part that a key is in.
inline i64 part_end(i64 key) { return (key / PART + 1) * PART; }

// A score as a cap and the distance between query and key bend it.
inline f32 bent(const Attention& a, f32 score, f32 slope, i64 distance) {
    return capped(score, a.softcap) - slope * (f32)std::abs(distance);
}

PROPOLIS_INLINE F32s or_zero(F32s x) {
    PROPOLIS_EACH x.part[p] = x.part[p] == -INFINITE ? f32v{} : x.part[p];
    return x;
}

// Lanes [from, to) as they are, the others minus infinity.
PROPOLIS_INLINE F32s within(F32s x, i64 from, i64 to) {
    static constexpr f32 NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F32s lane = load(NUMBERS);
    PROPOLIS_EACH x.part[p] = (lane.part[p] >= (f32)from) & (lane.part[p] < (f32)to) ? x.part[p] : f32v{} - INFINITE;
    return x;
}

// Scores of n keys, from the j0-th on, and of `count` queries of a head, the first at `origin`, in the lanes of N vectors:
// as a cap, distances and who sees whom bend them.
template <int N>
void bend(const Attention& a, i64 head, i64 origin, i64 count, i64 j0, i64 n, f32* scores) {
    constexpr i64 ALL = N * LANES;
    if (a.softcap != 0 || a.alibi) {
        const f32 slope = a.alibi ? a.alibi[head] : 0;
        for (i64 j = 0; j < n; ++j) {
            f32* row = scores + j * ALL;
            for (i64 lane = 0; lane < ALL; ++lane) row[lane] = bent(a, row[lane], slope, origin + lane - j0 - j);
        }
    }
    const bool late = a.right >= 0 && j0 + n - 1 > origin + a.right;
    const bool early = a.left >= 0 && j0 < origin + count - 1 - a.left;
    if (!late && !early) return;
    for (i64 j = 0; j < n; ++j) {  // the lanes that see a key are some side by side
        const i64 from = a.right < 0 ? 0 : std::clamp<i64>(j0 + j - origin - a.right, 0, ALL);
        const i64 to = a.left < 0 ? ALL : std::clamp<i64>(j0 + j - origin + a.left + 1, 0, ALL);
        if (from == 0 && to == ALL) continue;
        for (int v = 0; v < N; ++v) {
            f32* lanes = scores + (j * N + v) * LANES;
            store(lanes, within(load(lanes), from - v * LANES, to - v * LANES));
        }
    }
}

// Which sequences a call is for.
struct Tokens {
    i64 least, most;
    bool operator()(const Sequence& s) const { return s.tokens >= least && s.tokens <= most; }
};

}  // namespace propolis
