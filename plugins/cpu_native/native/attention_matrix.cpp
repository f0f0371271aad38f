// Attention of many queries by tiles of matrices in bf16, sums in f32.  Queries in f32, and keys beside them that are not
// in bf16, are sums of two such numbers, so that scores, which make powers, lose 2^-16 of their terms; values and their
// weights are rounded to bf16, as a product by tiles rounds what it takes from here, and so are scaled queries in bf16.
// Where a key or value is denormal, infinite or NaN, or a query in f32 infinite or NaN, the other kernel computes the
// whole call.
// Semantics: core's propolis/ops/attention.py.
#include "attention.h"
#include "matrix.h"

#ifdef PROPOLIS_MATRIX
#include <atomic>
#include <vector>

#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 KEYS = 128;            // looked at together
constexpr i64 DEEP = KEYS / DEPTH;   // steps of weights
constexpr i64 WEIGHTS = DEEP * TILE_SIZE;
constexpr i64 FEW = SIDE - 1;        // queries of a sequence, up to which vectors are faster
constexpr i64 ROOM = i64{1} << 24;   // elements of packed keys and values, unless a single head has more
constexpr f32 LOG2_E = 1.44269504f;

// How a product of L on the left by R is taken apart: what is not in bf16 is a sum of two such numbers.  Terms: of the
// first numbers; of the second on the left; of the second on the right.
template <class L, class R>
struct Terms {
    static constexpr i64 LEFT = std::is_same_v<L, bf16> ? 1 : 2, RIGHT = std::is_same_v<R, bf16> ? 1 : 2;
    static constexpr i64 COUNT = LEFT + RIGHT - 1;
    static constexpr i64 left(i64 term) { return term > 0 && term < LEFT ? 1 : 0; }
    static constexpr i64 right(i64 term) { return term >= LEFT ? 1 : 0; }
};

// Where the packed keys and values of a head of a sequence lie, in elements.
struct Packed {
    i64 steps, columns;  // tiles along a head of keys, and of values, of these an even number
    i64 keys;            // of a head, rounded up
    i64 key_size;        // elements of sixteen keys, [number][step]
    i64 column_size;     // and of sixteen columns of values, [key / 32]
    i64 head;            // of all keys and values of a head
    bf16* at;
    bf16* key(i64 unit) const { return at + unit * head; }
    bf16* value(i64 unit) const { return key(unit) + keys / LANES * key_size; }
};

// Which are NaN or rounded to an infinity.
PROPOLIS_INLINE __mmask16 endless(const F32s& x) {
    return _mm512_cmpge_epu32_mask((__m512i)bits_as<U32s>(magnitude(x)).part[0], _mm512_set1_epi32(0x7f7f8000));
}
// Those, and which are so small that they or their second numbers count as 0.
template <i64 NUMBERS>
PROPOLIS_INLINE __mmask16 odd(const F32s& x) {
    constexpr u32 LEAST = NUMBERS == 1 ? 0x00800000 : 0x08000000;
    const U32s less = bits_as<U32s>(magnitude(x)) - splat<U32s>(1u);
    return endless(x) | _mm512_cmplt_epu32_mask((__m512i)less.part[0], _mm512_set1_epi32(LEAST - 1));
}

// Thirty-two numbers, the first sixteen below, and what they are more than that, `apart` from them.
template <i64 NUMBERS>
PROPOLIS_INLINE void put(bf16* to, i64 apart, const F32s& below, const F32s& above) {
    const __m512i first = rounded(below, above);
    _mm512_store_si512(to, first);
    if constexpr (NUMBERS == 2) {
        const auto rest = [](const F32s& x, const __m256i& halves) {
            return x - bits_as<F32s>(U32s{(u32v)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)});
        };
        const F32s less = rest(below, _mm512_castsi512_si256(first)), more = rest(above, _mm512_extracti64x4_epi64(first, 1));
        _mm512_store_si512(to + apart, rounded(less, more));
    }
}

template <class K>
PROPOLIS_INLINE F32s some_at(const K* row, i64 i, i64 left) {
    return row && left > 0 ? kept_at(row, i, left) : splat(0.0f);
}

// Keys [j0, j0 + KEYS) of a head and their values, those beyond the last as zeros, as rows of the left: keys, and columns
// of values.  False where one would be taken for 0, or spoil the sums of queries that do not see it.
template <class T, class K>
bool pack(const Packed& p, const Rows<K>& keys, const Rows<K>& values, i64 valid, i64 j0, i64 dim, i64 value_dim,
          bf16* to_keys, bf16* to_values) {
    constexpr i64 NUMBERS = Terms<K, T>::LEFT;
    __mmask16 lost = 0;
    for (i64 j = j0; j < j0 + KEYS; ++j) {
        const K* from = j < valid ? keys[j] : nullptr;
        bf16* to = to_keys + j / LANES * p.key_size + j % LANES * DEPTH;
        for (i64 step = 0; step < p.steps; ++step) {
            const i64 i = step * DEPTH;
            const F32s below = some_at(from, i, dim - i), above = some_at(from, i + LANES, dim - i - LANES);
            put<NUMBERS>(to + step * TILE_SIZE, p.steps * TILE_SIZE, below, above);
            lost |= odd<NUMBERS>(below) | odd<NUMBERS>(above);
        }
    }
    for (i64 j = j0; j < j0 + KEYS; j += DEPTH) {
        for (i64 column = 0; column < p.columns; ++column) {
            const i64 first = column * LANES;
            bf16* tile = to_values + column * p.column_size + j / DEPTH * TILE_SIZE;
            for (i64 pair = 0; pair < PAIRS; ++pair) {
                const i64 key = j + 2 * pair;
                const F32s a = some_at(key < valid ? values[key] : nullptr, first, value_dim - first);
                const F32s b = some_at(key + 1 < valid ? values[key + 1] : nullptr, first, value_dim - first);
                _mm512_store_si512(tile + pair * DEPTH, rounded_pairs(a, b));
                lost |= odd<1>(a) | odd<1>(b);
            }
            turn(tile);
        }
    }
    return !lost;
}

// 2 to the power of what is not above 0, to 2e-7 of it, and 0 where that is denormal, which would take a hundred times as
// long; NaN stays NaN.
PROPOLIS_INLINE F32s power_below(const F32s& x) {
    const __m512 least = _mm512_set1_ps(-126), bounded = _mm512_max_ps(least, (__m512)x.part[0]);  // NaN: the second
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x.part[0], least, _CMP_NLT_UQ);
    const __m512 whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F32s r{(f32v)_mm512_sub_ps(bounded, whole)};
    // Fitted to 2**r for |r| <= 1 / 2, and 1 at 0.
    F32s y = fma(splat(1.32646687e-3f), r, splat(9.67150648e-3f));
    y = fma(y, r, splat(5.55073383e-2f));
    y = fma(y, r, splat(2.40222422e-1f));
    y = fma(y, r, splat(6.93146978e-1f));
    y = fma(y, r, splat(1.0f));
    return {(f32v)_mm512_maskz_scalef_ps(normal, (__m512)y.part[0], whole)};
}

// What a thread works in: 32 queries of a head, one a lane of two vectors, and what they have of the keys so far.
struct Block {
    f32 *scores, *acc, *tops, *totals;  // [key][lane], [column][lane], [lane]
    bf16 *queries, *weights;            // of sixteen: [number][step], [key / 32]
    Block(i64 columns, i64 query_size) {
        thread_local Room<> sums;
        thread_local Room<bf16> factors;
        scores = sums.of(SIDE * (KEYS + columns + 2));
        acc = scores + SIDE * KEYS;
        tops = acc + SIDE * columns;
        totals = tops + SIDE;
        queries = factors.of(2 * (query_size + WEIGHTS));
        weights = queries + 2 * query_size;
        std::fill(acc, tops, 0.0f);
        std::fill(tops, totals, -INFINITE);
        std::fill(totals, totals + SIDE, 0.0f);
    }

    // Scores of sixteen queries as weights: exponentials less the largest so far.
    void soften(i64 lane, i64 columns, bf16* to) const {
        const f32* from = scores + lane;
        const F32s old = load(tops + lane);
        F32s some[4] = {old, old, old, old};
        for (i64 j = 0; j < KEYS; j += 4) {
            for (i64 u = 0; u < 4; ++u) some[u] = larger(load(from + (j + u) * SIDE), some[u]);
        }
        const F32s top = larger(larger(some[0], some[1]), larger(some[2], some[3]));
        const F32s less = or_zero(top);
        const auto share = [&](const F32s& score) { return power_below((score - less) * splat(LOG2_E)); };
        F32s even = splat(0.0f), odd = even;
        for (i64 j = 0; j < KEYS; j += 2) {
            const F32s a = share(load(from + j * SIDE)), b = share(load(from + (j + 1) * SIDE));
            even = even + a;
            odd = odd + b;
            _mm512_store_si512(to + j * LANES, rounded_pairs(a, b));
        }
        const F32s before = share(old);
        store(totals + lane, fma(load(totals + lane), before, even + odd));
        store(tops + lane, top);
        if (_mm512_cmpeq_ps_mask((__m512)old.part[0], (__m512)top.part[0]) == 0xffff) return;
        for (i64 e = 0; e < columns; ++e) store(acc + e * SIDE + lane, load(acc + e * SIDE + lane) * before);
    }
};

// 32 queries of one head, from the t0-th of a sequence on; whether these can be sums of two numbers.
template <class T, class K>
bool attend(const Attention& a, const Sequence& s, const Packed& p, i64 unit, i64 head, i64 t0, const Offsets& of_keys,
            const Offsets& of_values) {
    typedef Terms<K, T> Scores;
    const i64 dim = a.q.shape[3], value_dim = a.out.shape[3], columns = p.columns * LANES;
    const i64 count = std::min(SIDE, s.tokens - t0), origin = s.valid - s.tokens + t0;
    const i64 query_size = Scores::RIGHT * p.steps * TILE_SIZE;
    const Block own(columns, query_size);
    for (i64 r = 0; r < SIDE; ++r) {
        const T* from = (const T*)a.q.at + s.row * a.q.strides[0] + (s.first + t0 + std::min(r, count - 1)) * a.q.strides[1] +
                        head * a.q.strides[2];
        for (i64 step = 0; step < p.steps; ++step) {
            const i64 i = step * DEPTH;
            const F32s below = some_at(from, i, dim - i) * splat(a.scale);
            const F32s above = some_at(from, i + LANES, dim - i - LANES) * splat(a.scale);
            put<Scores::RIGHT>(own.queries + r / LANES * query_size + step * TILE_SIZE + r % LANES * DEPTH, p.steps * TILE_SIZE,
                               below, above);
            if (Scores::RIGHT == 2 && (endless(below) | endless(above))) return false;
        }
    }
    for (i64 tile = 0; tile < 2 * Scores::RIGHT * p.steps; ++tile) turn(own.queries + tile * TILE_SIZE);
    const i64 size = count > LANES ? query_size : 0, lanes = count > LANES ? SIDE : LANES;
    const i64 steps = Scores::COUNT * p.steps, pairs = Scores::COUNT == 1 ? parts(dim, 2) : steps * PAIRS;
    const Range range = seen(a, s.valid, origin, origin + count - 1);
    for (i64 j0 = range.first / KEYS * KEYS; j0 < range.end; j0 += KEYS) {
        for (i64 j = 0; j < KEYS; j += SIDE) {
            multiply_tiles(own.scores + j * SIDE, SIDE, p.key(unit) + (j0 + j) / LANES * p.key_size, p.key_size, own.queries,
                           size, of_keys, {.steps = steps, .pairs = pairs});
        }
        const i64 there = std::min(KEYS, s.valid - j0);
        bend<2>(a, head, origin, count, j0, there, own.scores);
        std::fill(own.scores + there * SIDE, own.scores + KEYS * SIDE, -INFINITE);
        for (i64 lane = 0; lane < lanes; lane += LANES) {
            own.soften(lane, columns, own.weights + lane / LANES * WEIGHTS);
        }
        for (i64 e = 0; e < columns; e += SIDE) {
            f32* acc = own.acc + e * SIDE;
            multiply_tiles(acc, SIDE, p.value(unit) + e / LANES * p.column_size + j0 / DEPTH * TILE_SIZE, p.column_size,
                           own.weights, size ? WEIGHTS : 0, of_values,
                           {.steps = DEEP, .rows = std::min(SIDE, value_dim - e), .onto = acc, .onto_row = SIDE});
        }
    }
    for (i64 lane = 0; lane < lanes; lane += LANES) {
        const F32s total = load(own.totals + lane), share = splat(1.0f) / total;
        for (i64 e = 0; e < value_dim; e += LANES) {
            alignas(64) f32 tile[LANES * LANES];
            for (i64 i = 0; i < LANES; ++i) {
                const F32s x = load(own.acc + (e + i) * SIDE + lane) * share;
                store(tile + i * LANES, {total.part[0] == 0 ? f32v{} : x.part[0]});
            }
            turn((bf16*)tile);
            for (i64 r = 0; r < std::min<i64>(LANES, count - lane); ++r) {
                const i64 token = s.first + t0 + lane + r;
                T* out = (T*)a.out.at + ((s.row * a.q.shape[1] + token) * a.q.shape[2] + head) * value_dim;
                store_some(out + e, load(tile + r * LANES), value_dim - e);
            }
        }
    }
    for (i64 r = 0; a.lse && r < count; ++r) {
        const f32 less = own.tops[r] == -INFINITE ? 0 : own.tops[r];
        ((f32*)a.lse)[(s.row * a.q.shape[2] + head) * a.q.shape[1] + s.first + t0 + r] = __builtin_logf(own.totals[r]) + less;
    }
    return true;
}

template <class T, class K>
void tiled(const Attention& a) {
    typedef Terms<K, T> Scores;
    const i64 kv_heads = a.k.shape[2], group = a.q.shape[2] / kv_heads;
    const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
    const auto blocks = [&](const Sequence& s) { return s.tokens > FEW ? parts(s.tokens, SIDE) : 0; };
    i64 most = 0;
    std::vector<i64> sequences;  // those that are for tiles
    for (i64 i = 0; i < a.batch; ++i) {
        const Sequence s = sequence_at(a, i);
        if (!blocks(s)) continue;
        most = std::max(most, s.valid);
        sequences.push_back(i);
    }
    if (sequences.empty()) return attention(a);
    Packed p{};
    p.steps = parts(dim, DEPTH);
    p.columns = 2 * parts(value_dim, SIDE);
    p.keys = parts(most, KEYS) * KEYS;
    p.key_size = Scores::LEFT * p.steps * TILE_SIZE;
    p.column_size = p.keys / DEPTH * TILE_SIZE;
    p.head = p.keys / LANES * p.key_size + p.columns * p.column_size;
    // Heads of keys of all sequences, some at a time.
    const i64 all = (i64)sequences.size() * kv_heads, together = std::clamp<i64>(ROOM / std::max<i64>(p.head, 1), 1, all);
    const auto sequence_of = [&](i64 unit) { return sequence_at(a, sequences[unit / kv_heads]); };
    thread_local Room<bf16> packed_room;
    thread_local Room<i64> offset_room;
    p.at = packed_room.of(together * p.head);
    const i64 tiles = Scores::COUNT * p.steps;
    i64 *left = offset_room.of(2 * tiles + DEEP), *right = left + tiles, *in_order = right + tiles;
    for (i64 i = 0; i < tiles; ++i) {
        left[i] = (Scores::left(i / p.steps) * p.steps + i % p.steps) * TILE_SIZE;
        right[i] = (Scores::right(i / p.steps) * p.steps + i % p.steps) * TILE_SIZE;
    }
    for (i64 i = 0; i < DEEP; ++i) in_order[i] = i * TILE_SIZE;
    const i64 chunks = p.keys / KEYS;
    for (i64 first = 0; first < all; first += together) {
        const i64 some = std::min(together, all - first);
        std::atomic<bool> normal = true;
        parallel(a.threads, some * chunks, [&](i64 task) {
            const i64 unit = task / chunks, j0 = task % chunks * KEYS;
            const Sequence s = sequence_of(first + unit);
            if (j0 >= s.valid) return;
            const i64 h = (first + unit) % kv_heads;
            const Rows<K> keys(a, a.k, s, h), values(a, a.v, s, h);
            if (!pack<T, K>(p, keys, values, s.valid, j0, dim, value_dim, p.key(unit), p.value(unit))) normal = false;
        });
        if (!normal) return attention(a);
        i64 total = 0;
        for (i64 unit = 0; unit < some; ++unit) total += blocks(sequence_of(first + unit));
        // Tasks: blocks of queries by heads of keys, which stay in the cache; the last ones first, they see most.
        parallel(a.threads, total, [&](i64 number) {
            i64 block = total - 1 - number, unit = 0;
            Sequence s = sequence_of(first);
            while (block >= blocks(s)) {
                block -= blocks(s);
                s = sequence_of(first + ++unit);
            }
            const Registers registers;
            for (i64 g = 0; g < group; ++g) {
                if (!attend<T, K>(a, s, p, unit, (first + unit) % kv_heads * group + g, block * SIDE, {left, right},
                                  {in_order, in_order})) {
                    normal = false;
                }
            }
        });
        if (!normal) return attention(a);
    }
    if ((i64)sequences.size() < a.batch) attention(a, FEW);
}

}  // namespace

void attention_tiled(const Attention& a) {
    switch (a.kept) {
        case Kept::SAME: return a.kind == Kind::BF16 ? tiled<bf16, bf16>(a) : attention(a);
        case Kept::F16: return tiled<f32, f16>(a);
        case Kept::BF16: return tiled<f32, bf16>(a);
        case Kept::Q8: return tiled<f32, Q8>(a);
    }
}

}  // namespace propolis

#else

namespace propolis {

void attention_tiled(const Attention&) {}

}  // namespace propolis
#endif
