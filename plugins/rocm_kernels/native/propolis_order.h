// Elements as entries that sort by unsigned numbers: a key that has the order of the dtype, NaN above
// all, and behind it the place, so that no two entries of a row are equal and every sort is stable.
#pragma once

#include "propolis_kinds.h"

// Of a float: the sign and what is below it turned into one unsigned order; both zeros are one
// number, and so are all NaN, whose magnitude is above `infinity`, the largest that is none.
template <class K>
PROPOLIS_FN K float_key(K bits, K sign, K infinity) {
    const K size = bits & (sign - 1);
    if (size > infinity) return (K)(sign | (sign - 1));
    if (size == 0) return sign;
    return bits & sign ? (K)(sign - 1 - size) : (K)(sign | size);
}

// The key of stored bits, in as many of the low bits of K as the dtype has.
template <class K>
PROPOLIS_FN K key_of(u64 stored, i32 kind) {
    const K bits = (K)stored;
    switch (kind) {
        case KIND_F8E4M3:
            return float_key<K>(bits, 0x80u, 0x7eu);
        case KIND_F8E5M2:
            return float_key<K>(bits, 0x80u, 0x7cu);
        case KIND_I8:
            return bits ^ 0x80u;
        case KIND_I16:
            return bits ^ 0x8000u;
        case KIND_F16:
            return float_key<K>(bits, 0x8000u, 0x7c00u);
        case KIND_BF16:
            return float_key<K>(bits, 0x8000u, 0x7f80u);
        case KIND_I32:
            return bits ^ 0x80000000u;
        case KIND_F32:
            return float_key<K>(bits, 0x80000000u, 0x7f800000u);
        case KIND_I64:
            return (K)(stored ^ 0x8000000000000000ull);
        case KIND_F64:
            return (K)float_key<u64>(stored, 0x8000000000000000ull, 0x7ff0000000000000ull);
        default:  // KIND_U8, KIND_U32
            return bits;
    }
}

// Keys of up to 32 bits in rows of fewer than 2**32 - 1 elements.
struct ShortEntry {
    u64 both;

    PROPOLIS_FN ShortEntry of(u64 bits, i32 kind, bool descending, i64 place) {
        const u32 key = key_of<u32>(bits, kind);
        return ShortEntry{(u64)(descending ? ~key : key) << 32 | (u64)place};
    }
    PROPOLIS_FN ShortEntry last() { return ShortEntry{~0ull}; }
    PROPOLIS_METHOD i64 place() const { return (i64)(both & 0xffffffffu); }
    PROPOLIS_METHOD bool before(const ShortEntry& other) const { return both < other.both; }
};

// Any keys, rows of any length.
struct LongEntry {
    u64 key;
    i64 at;

    PROPOLIS_FN LongEntry of(u64 bits, i32 kind, bool descending, i64 place) {
        const u64 key = key_of<u64>(bits, kind);
        return LongEntry{descending ? ~key : key, place};
    }
    PROPOLIS_FN LongEntry last() { return LongEntry{~0ull, 0x7fffffffffffffffll}; }
    PROPOLIS_METHOD i64 place() const { return at; }
    PROPOLIS_METHOD bool before(const LongEntry& other) const {
        return key < other.key || (key == other.key && at < other.at);
    }
};
