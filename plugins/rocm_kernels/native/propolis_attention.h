// What all attention kernels share: which keys a query sees, where they lie, and what becomes of
// a score.  Semantics: core's propolis/ops/attention.py.
#pragma once

#include "propolis_reduce.h"
#include "propolis_runs.h"

// Positions of tokens are 32 bits wide, as kv_len is; strides are 64.
struct AttentionShape {
    i64 q[4], k[4], v[4], bias[4];  // strides; of pages: page, row, head, element; of blocks bytes
    i64 table[2];
    i64 kv_len, alibi, q_start;
    i64 threads;  // of a block
    i64 parts;    // blocks that share the keys of a query
    f64 scale, softcap;
    i32 batch;        // sequences
    i32 total;        // rows of q's token dimension
    i32 heads;        // of queries
    i32 group;        // query heads of a key-value head
    i32 dim;          // of queries and keys
    i32 value_dim;
    i32 capacity;     // keys of a sequence, at most
    i32 left, right;  // keys seen on either side of the query's own; negative: all
    i32 page_size, pages;
    i32 wide_bias;  // the bias is f32, whatever T is
};

// Of queries of T, and of keys and values that are kept as K.
template <class T, class K = T>
struct Attention {
    T* out;                // (batch, tokens, heads, value_dim), contiguous
    Compute<T>* lse;       // (batch, heads, tokens), contiguous, or null
    const T* q;
    const K *k, *v;
    const i32* kv_len;     // these may be null
    const T* bias;
    const f32* alibi;
    const i32* q_start;
    const i32* block_table;
    u32* scratch;  // where blocks share keys
};

#define ATTENTION_ARGUMENTS(T, K)                                                           \
    T *out, Compute<T>*lse, const T *q, const K *k, const K *v, const i32 *kv_len,          \
        const T *bias, const f32 *alibi, const i32 *q_start, const i32 *block_table,        \
        u32 *scratch, AttentionShape shape
#define ATTENTION(T, K) \
    Attention<T, K> { out, lse, q, k, v, kv_len, bias, alibi, q_start, block_table, scratch }

// A sequence: which rows of q are its queries, and how many keys it has.
struct Sequence {
    i32 index;
    i32 row;    // in q's batch dimension
    i32 first;  // of its queries, in q's token dimension
    i32 tokens;
    i32 valid;
};

// Where the queries of a sequence of a ragged batch begin; within q, whatever is said there.
template <class A>
PROPOLIS_FN i32 start_at(const A& a, const AttentionShape& s, i32 index) {
    const i32 told = a.q_start[index * s.q_start];
    return told < 0 ? 0 : told < s.total ? told : s.total;
}

template <class A>
PROPOLIS_FN Sequence sequence_at(const A& a, const AttentionShape& s, i32 index) {
    Sequence found{index, index, 0, s.total, s.capacity};
    if (a.q_start) {
        found.row = 0;
        found.first = start_at(a, s, index);
        found.tokens = start_at(a, s, index + 1) - found.first;
    }
    if (a.kv_len) {
        // Whatever it says, memory outside the cache is not touched.
        const i32 told = a.kv_len[index * s.kv_len];
        found.valid = told < 0 ? 0 : told < s.capacity ? told : s.capacity;
    }
    return found;
}

// Which queries of which head a block has, COUNT of them: tiles of a sequence are neighbours, sequences
// follow each other.  Of a ragged batch there are fewer tiles than there might be.
struct QueryTile {
    bool there;
    i32 index, head, tile;
};
template <int COUNT, class A>
PROPOLIS_FN QueryTile query_tile(const A& a, const AttentionShape& s) {
    QueryTile found{true, (i32)(block_x() / (u32)s.heads), (i32)(block_x() % (u32)s.heads), 0};
    if (a.q_start) {
        i32 before = found.index;
        for (found.index = 0; found.index < s.batch; ++found.index) {
            const i32 rows = start_at(a, s, found.index + 1) - start_at(a, s, found.index);
            found.tile = before;
            before -= (rows + COUNT - 1) / COUNT;
            if (before < 0) break;
        }
        found.there = found.index < s.batch;
    } else {
        const i32 tiles_each = (s.total + COUNT - 1) / COUNT;
        found.tile = (i32)((u32)found.index % (u32)tiles_each);
        found.index = (i32)((u32)found.index / (u32)tiles_each);
    }
    return found;
}

// An element of the bias, which there is.
template <class T, class K>
PROPOLIS_FN Compute<T> bias_at(const Attention<T, K>& a, const AttentionShape& s, i64 element) {
    if constexpr (sizeof(T) != sizeof(f32)) {
        if (s.wide_bias) return (Compute<T>)((const f32*)a.bias)[element];
    }
    return wide(a.bias[element]);
}

// Eight elements of a row of a cache, from where they may be loaded in packs.
template <class K, class C>
PROPOLIS_FN void load_kept(const K* row, i64 element, C (&run)[RUN]) {
    load_run(row + element, run);
}

// Where a key lies: in which page, and which row of it.
struct Spot {
    i32 page, row;
};

// The pages of a sequence; without them all its keys are in one.
struct Pages {
    const i32* table;  // a choice of it or null were of a kind of memory that AMD's compiler does not know
    i32 step, size, count;  // of pages; size 0: there are none

    // Which pages keys are in, of all at once: where a thread asked for one and then another, it would wait for each.
    template <int N>
    PROPOLIS_METHOD void ask(const i32 (&keys)[N], i32 (&which)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) which[i] = 0;
        if (!size) return;
#pragma unroll
        for (int i = 0; i < N; ++i) which[i] = table[(i64)((u32)keys[i] / (u32)size) * step];
    }
    PROPOLIS_METHOD Spot spot(i32 key, i32 which) const {
        if (!size) return Spot{0, key};
        return Spot{which < 0 ? 0 : which < count ? which : count - 1, (i32)((u32)key % (u32)size)};
    }
    PROPOLIS_METHOD Spot spot(i32 key) const {
        i32 which[1];
        ask({key}, which);
        return spot(key, which[0]);
    }
};

// Keys or values of a sequence and a head: row j is that of key j.  Where `packed`, all runs of
// it may be loaded in packs.
template <class K, bool packed>
struct CacheRows {
    const K* at;  // of key 0, or of page 0
    Pages pages;
    i64 row, step, page;
    i32 rows;   // keys from here on are not read
    i32 depth;  // elements

    typedef Compute<K> C;
    template <class T>
    PROPOLIS_METHOD CacheRows(const Attention<T, K>& a, const AttentionShape& s, const K* from,
                              const i64 (&strides)[4], i32 depth, const Sequence& sequence,
                              i32 head)
        : at(from + head * strides[2]), row(strides[1]), step(strides[3]), page(strides[0]),
          rows(sequence.valid), depth(depth) {
        const bool paged = a.block_table;
        const i32* table = a.block_table + (paged ? sequence.index * s.table[0] : 0);
        pages = Pages{table, (i32)s.table[1], paged ? s.page_size : 0, s.pages};
        if (!paged) at += sequence.index * page;
    }
    PROPOLIS_METHOD bool across() const { return false; }
    PROPOLIS_METHOD const K* place(const Spot& spot) const {
        return at + spot.page * page + spot.row * row;
    }
    // Zeros, unless it is `there`; the spot is one that may be read.
    PROPOLIS_METHOD void fetch(const Spot& spot, bool there, i32 e, C (&run)[RUN]) const {
        const bool inside = there && e < depth;
        const K* from = place(spot);
        if constexpr (packed) {
            load_kept(from, inside ? e : 0, run);
#pragma unroll
            for (int i = 0; i < RUN; ++i) run[i] = inside ? run[i] : (C)0;
        } else {
            load_some(from + (inside ? e * step : 0), step, inside ? depth - e : 0, run);
        }
    }
    PROPOLIS_METHOD void fetch(i64 j, i64 e, C (&run)[RUN]) const {
        const bool there = j < rows;
        fetch(pages.spot(there ? (i32)j : 0), there, (i32)e, run);
    }
};

// The keys [first, end) that the queries at positions from `low` to `high` see, or some of them.
struct Range {
    i32 first, end;
};
PROPOLIS_FN Range seen(const AttentionShape& s, i32 valid, i32 low, i32 high) {
    Range keys{0, valid};
    // Differences cannot overflow: positions and reaches are within 31 bits, and lengths too.
    if (s.left >= 0 && low > s.left) keys.first = low - s.left;
    if (s.right >= 0 && high < valid - 1 - s.right) keys.end = high + s.right + 1;
    return keys;
}

template <class C>
PROPOLIS_FN C capped(C score, C cap) {
    return math::tanh(score / cap) * cap;
}

PROPOLIS_FN i32 distance(i32 a, i32 b) { return a < b ? b - a : a - b; }

// What exponentials of scores up to `top` are taken of: not of -inf, less which is NaN.
template <class C>
PROPOLIS_FN C finite_top(C top) {
    return top == -(C)PROPOLIS_INF ? (C)0 : top;
}
