// Attention of many queries in bf16, by tiles of matrices: exponentials are rounded to bf16, sums in f32.
// Where a value is denormal, infinite or NaN, the other kernel computes the whole call.
// Semantics: core's propolis/ops/attention.py.
#include "attention.h"
#include "matrix.h"

#ifdef PROPOLIS_MATRIX
#include <atomic>

#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 KEYS = 128;  // looked at together
constexpr i64 QUERIES = SIDE;

// Where the packed keys and values of sequences and heads lie, in elements.
struct Packed {
    i64 steps, columns;     // tiles along a head of keys, and of values
    i64 keys, head;         // of a head, rounded up; elements of its keys and values
    bf16* at;
    bf16* key(i64 sequence, i64 heads, i64 h) const { return at + (sequence * heads + h) * head; }
    bf16* value(i64 sequence, i64 heads, i64 h) const { return key(sequence, heads, h) + keys / LANES * steps * TILE_SIZE; }
};

bool any_odd(const __m512i& elements) {
    const __m512i sizes = _mm512_and_si512(elements, _mm512_set1_epi16(0x7fff));
    const __m512i less = _mm512_sub_epi16(sizes, _mm512_set1_epi16(1));
    return _mm512_cmplt_epu16_mask(less, _mm512_set1_epi16(0x7f)) | _mm512_cmpge_epu16_mask(sizes, _mm512_set1_epi16(0x7f80));
}

// Keys [j0, j0 + KEYS) of a head, those beyond the last as zeros.  Keys: [key / 16][step], columns of the
// right; values: [column / 16][key / 32], rows of it.  False where a value would be taken for 0, or spoil the sums
// of queries that do not see it.
bool pack(const Packed& p, const Rows<bf16>& keys, const Rows<bf16>& values, i64 valid, i64 j0, i64 dim, i64 value_dim,
          bf16* to_keys, bf16* to_values) {
    for (i64 j = j0; j < j0 + KEYS; j += LANES) {
        bf16* tiles = to_keys + j / LANES * p.steps * TILE_SIZE;
        for (i64 r = 0; r < LANES; ++r) {
            const bf16* from = j + r < valid ? keys[j + r] : nullptr;
            for (i64 step = 0; step < p.steps; ++step) {
                const __m512i key = load_bits(from + step * DEPTH, from ? dim - step * DEPTH : 0);
                _mm512_store_si512(tiles + step * TILE_SIZE + r * DEPTH, key);
            }
        }
        for (i64 step = 0; step < p.steps; ++step) turn(tiles + step * TILE_SIZE);
    }
    bool normal = true;
    for (i64 j = j0; j < j0 + KEYS; j += 2) {
        const bf16 *even = j < valid ? values[j] : nullptr, *odd = j + 1 < valid ? values[j + 1] : nullptr;
        for (i64 column = 0; column < p.columns; ++column) {
            const i64 first = column * LANES, left = std::min<i64>(value_dim - first, LANES);
            const __m512i a = load_bits(even + first, even ? left : 0), b = load_bits(odd + first, odd ? left : 0);
            bf16* tile = to_values + (column * (p.keys / DEPTH) + j / DEPTH) * TILE_SIZE;
            normal &= !any_odd(a) && !any_odd(b);
            _mm512_store_si512(tile + j % DEPTH / 2 * DEPTH, paired(a, b));
        }
    }
    return normal;
}

// One row of scores as exponentials less the largest so far; what the sums before count for.
f32 soften(f32* scores, f32& top, f32& total, bf16* to) {
    F32s most = load(scores);
    for (i64 j = LANES; j < KEYS; j += LANES) most = larger(load(scores + j), most);
    const f32 before = top;
    const f32 here = largest(most);
    if (here > top) top = here;
    const f32 less = top == -INFINITE ? 0 : top;
    F32s sums = splat(0.0f);
    for (i64 step = 0; step < KEYS / DEPTH; ++step) {
        const F32s a = exp_below(load(scores + step * DEPTH) - splat(less));
        const F32s b = exp_below(load(scores + step * DEPTH + LANES) - splat(less));
        sums = sums + a + b;
        _mm512_store_si512(to + step * TILE_SIZE, rounded(a, b));
    }
    const f32 old = before == top ? 1.0f : __builtin_expf(before - less);
    total = total * old + sum(sums);
    return old;
}

}  // namespace

void attention_tiled(const Attention& a) {
    const i64 heads = a.q.shape[2], kv_heads = a.k.shape[2], group = heads / kv_heads;
    const i64 dim = a.q.shape[3], value_dim = a.v.shape[3];
    i64 most = 0, total = 0;
    for (i64 s = 0; s < a.batch; ++s) {
        const Sequence sequence = sequence_at(a, s);
        most = std::max(most, sequence.valid);
        total += parts(sequence.tokens, QUERIES);
    }
    Packed p{};
    p.steps = parts(dim, DEPTH);
    p.columns = parts(value_dim, LANES);
    p.keys = parts(most, KEYS) * KEYS;
    p.head = p.keys / LANES * p.steps * TILE_SIZE + p.columns * (p.keys / DEPTH) * TILE_SIZE;
    thread_local Room<bf16> packed_room;
    thread_local Room<i64> offset_room;
    p.at = packed_room.of(a.batch * kv_heads * p.head);
    const i64 longest = std::max(p.steps, KEYS / DEPTH);
    i64* offsets = offset_room.of(longest);
    for (i64 i = 0; i < longest; ++i) offsets[i] = i * TILE_SIZE;
    const i64 chunks = p.keys / KEYS;
    std::atomic<bool> normal = true;
    parallel(a.threads, a.batch * kv_heads * chunks, [&](i64 task) {
        const i64 s = task / chunks / kv_heads, h = task / chunks % kv_heads, j0 = task % chunks * KEYS;
        const Sequence sequence = sequence_at(a, s);
        if (j0 >= sequence.valid) return;
        const Rows<bf16> keys(a, a.k, sequence, h), values(a, a.v, sequence, h);
        if (!pack(p, keys, values, sequence.valid, j0, dim, value_dim, p.key(s, kv_heads, h),
                  p.value(s, kv_heads, h))) {
            normal = false;
        }
    });
    if (!normal) return attention(a);
    // Tasks: heads of keys, which stay in the cache, by blocks of queries; the last ones first, they see most.
    parallel(a.threads, total * kv_heads, [&](i64 number) {
        i64 block = total - 1 - number % total, index = 0;
        const i64 kv_head = number / total;
        Sequence s = sequence_at(a, 0);
        while (block >= parts(s.tokens, QUERIES)) {
            block -= parts(s.tokens, QUERIES);
            s = sequence_at(a, ++index);
        }
        const i64 t0 = block * QUERIES, count = std::min(QUERIES, s.tokens - t0);
        const i64 origin = s.valid - s.tokens + t0;  // position of the first
        const Range range = seen(a, s.valid, origin, origin + count - 1);
        const bf16 *keys = p.key(index, kv_heads, kv_head), *values = p.value(index, kv_heads, kv_head);
        const i64 width = p.columns * LANES;

        const Registers registers;
        thread_local Room<> sum_room;
        thread_local Room<bf16> factor_room;
        f32* scores = sum_room.of(QUERIES * (KEYS + width + 2));
        f32 *acc = scores + QUERIES * KEYS, *tops = acc + QUERIES * width, *totals = tops + QUERIES;
        bf16* queries = factor_room.of(2 * (p.steps + KEYS / DEPTH) * TILE_SIZE);
        bf16* weights = queries + 2 * p.steps * TILE_SIZE;
        for (i64 g = 0; g < group; ++g) {
            const i64 h = kv_head * group + g;
            for (i64 r = 0; r < QUERIES; ++r) {
                const bf16* from = (const bf16*)a.q.at + s.row * a.q.strides[0] +
                                (s.first + t0 + std::min(r, count - 1)) * a.q.strides[1] + h * a.q.strides[2];
                for (i64 step = 0; step < p.steps; ++step) {
                    const i64 left = dim - step * DEPTH;
                    const F32s below = load_some(from + step * DEPTH, left) * splat(a.scale);
                    const F32s above = left > LANES ? load_some(from + step * DEPTH + LANES, left - LANES) * splat(a.scale)
                                                    : splat(0.0f);
                    bf16* tile = queries + (r / LANES * p.steps + step) * TILE_SIZE;
                    _mm512_store_si512(tile + r % LANES * DEPTH, rounded(below, above));
                }
            }
            std::fill(acc, acc + QUERIES * width, 0.0f);
            std::fill(tops, tops + QUERIES, -INFINITE);
            std::fill(totals, totals + QUERIES, 0.0f);
            for (i64 j0 = range.first / KEYS * KEYS; j0 < range.end; j0 += KEYS) {
                for (i64 j = 0; j < KEYS; j += SIDE) {
                    multiply_tiles(scores + j, KEYS, queries, p.steps * TILE_SIZE, keys + (j0 + j) / LANES * p.steps * TILE_SIZE,
                                   p.steps * TILE_SIZE, offsets, {.steps = p.steps, .pairs = parts(dim, 2)});
                }
                // Whether some of these keys are none, or hidden from some of these queries.
                const bool edges = j0 + KEYS > s.valid || (a.right >= 0 && j0 + KEYS - 1 > origin + a.right) ||
                                   (a.left >= 0 && j0 < origin + count - 1 - a.left);
                if (a.softcap != 0 || a.alibi || edges) {
                    const f32 slope = a.alibi ? a.alibi[h] : 0;
                    for (i64 r = 0; r < count; ++r) {
                        const i64 position = origin + r;
                        for (i64 j = 0; j < KEYS; ++j) {
                            const i64 at = j0 + j;
                            f32 v = capped(scores[r * KEYS + j], a.softcap);
                            if (a.alibi) v -= slope * (f32)std::abs(position - at);
                            const bool hidden = at >= s.valid || (a.right >= 0 && at > position + a.right) ||
                                                (a.left >= 0 && at < position - a.left);
                            scores[r * KEYS + j] = hidden ? -INFINITE : v;
                        }
                    }
                }
                for (i64 r = 0; r < QUERIES; ++r) {
                    bf16* to = weights + r / LANES * (KEYS / DEPTH) * TILE_SIZE + r % LANES * DEPTH;
                    const f32 old = soften(scores + r * KEYS, tops[r], totals[r], to);
                    if (old == 1.0f) continue;
                    f32* row = acc + r * width;
                    for (i64 e = 0; e < width; e += LANES) store(row + e, load(row + e) * splat(old));
                }
                for (i64 e = 0; e < p.columns; e += 2) {
                    const bf16* column = values + (e * (p.keys / DEPTH) + j0 / DEPTH) * TILE_SIZE;
                    multiply_tiles(acc + e * LANES, width, weights, KEYS / DEPTH * TILE_SIZE, column,
                                   e + 1 < p.columns ? p.keys / DEPTH * TILE_SIZE : 0, offsets,
                                   {.steps = KEYS / DEPTH, .onto = true});
                }
            }
            for (i64 r = 0; r < count; ++r) {
                const i64 token = s.first + t0 + r;
                bf16* out = (bf16*)a.out.at + ((s.row * a.q.shape[1] + token) * heads + h) * value_dim;
                const F32s share = splat(totals[r] == 0 ? 0.0f : 1.0f / totals[r]);
                for (i64 e = 0; e < value_dim; e += LANES) {
                    store_some(out + e, load(acc + r * width + e) * share, value_dim - e);
                }
                if (a.lse) {
                    const f32 less = tops[r] == -INFINITE ? 0 : tops[r];
                    ((f32*)a.lse)[(s.row * heads + h) * a.q.shape[1] + token] = __builtin_logf(totals[r]) + less;
                }
            }
        }
    });
}

}  // namespace propolis

#else

namespace propolis {

void attention_tiled(const Attention&) {}

}  // namespace propolis
#endif
