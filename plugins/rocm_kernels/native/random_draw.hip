// A place of each row, drawn by softmax.  Semantics: core's propolis/ops/random.py.  The likeliest of
// each row are found by `sort`.  Where cuts leave none but these, a block looks at them alone; else
// at all, once for each digit of the entry that is the last one left.  Where nothing is cut but by
// how little it weighs, blocks share a row.
#include "propolis_elementwise.h"
#include "propolis_order.h"
#include "propolis_scan.h"

struct DrawShape {
    i64 rows;
    i64 places;
    i64 row;         // between rows of x,
    i64 step;        // and between places
    i64 keys;        // between those of two rows, and so on
    i64 temperature;
    i64 top_k;
    i64 top_p;
    i64 min_p;
    i64 head;        // likeliest of each row that are given, no more than a block has threads
    i64 k;           // no row has more candidates; 0 for no such bound
    i64 parts;       // blocks that share a row
};

// What wins in a part of a row.
struct Leader {
    f32 soon;
    u32 reserved;
    u64 entry;
};

// How many values of a row a thread has on their way.
template <class T>
constexpr int ON_THEIR_WAY = sizeof(T) == 1 ? 1 : 4;
// Sums of weights, the largest of which is 1, are of integers: so their order does not matter.
constexpr f32 ONE = 0x1p40f;

PROPOLIS_FN u32 mixed(u32 bits) {
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
    return bits ^ bits >> 16;
}

// Between 0 and 1, of a place under a key.
template <class C>
PROPOLIS_FN C chance(u64 key, u64 place) {
    const u32 bits = mixed(mixed((u32)place + (u32)key) + (u32)(key >> 32));
    return ((C)bits + (C)0.5) * (C)0x1p-32;
}

// Who wins, of one of each thread: of equal ones the first.
template <class C>
PROPOLIS_FN Leader winner(C soon, u64 entry) {
    const C most = block_reduce(soon, (C)-1, [](C a, C b) { return a > b ? a : b; });
    const u64 first = block_reduce(soon == most ? entry : ~0ull, ~0ull,
                                   [](u64 a, u64 b) { return a < b ? a : b; });
    return Leader{(f32)most, 0, first};
}

template <class T>
struct DrawnRow {
    const T* x;
    i64 places;
    i64 step;
    u64 key;
    f32 peak;
    f32 temperature;

    PROPOLIS_METHOD ShortEntry entry(f32 value, i64 place) const {
        return ShortEntry::of(bits_as<u32>(value), KIND_F32, true, place);
    }
    // Else it is the first one.
    PROPOLIS_METHOD bool is_drawn() const { return temperature > 0 && !math::is_nan(peak); }
    template <class C>
    PROPOLIS_METHOD C weight(f32 value) const {
        return value == peak ? (C)1 : math::exp(((C)value - (C)peak) / (C)temperature);
    }
    // How late its time comes, turned over: the largest wins.
    template <class C>
    PROPOLIS_METHOD C soon(C weight, i64 place) const {
        return weight / -math::log1p(-chance<C>(key, (u64)place));
    }
    // f(value, place) of those from `begin` on that are this thread's.
    template <class F>
    PROPOLIS_METHOD void each(i64 begin, i64 end, F f) const {
        constexpr int N = ON_THEIR_WAY<T>;
#pragma unroll 1
        for (i64 base = begin + thread_x(); base < end; base += N * BLOCK) {
            f32 values[N];
#pragma unroll
            for (int a = 0; a < N; ++a) {
                const i64 place = base + a * BLOCK;
                values[a] = place < end ? wide(x[place * step]) : 0.0f;
            }
#pragma unroll
            for (int a = 0; a < N; ++a) {
                const i64 place = base + a * BLOCK;
                if (place < end) f(values[a], place);
            }
        }
    }
    // What all weigh together.
    PROPOLIS_METHOD f64 sum() const {
        f64 own = 0;
        each(0, places, [&](f32 value, i64) { own += (f64)weight<f32>(value); });
        return block_sum(own);
    }
    // The first entry up to which those up to `last` weigh so much: `bound(all of it)`.
    template <class W, class B>
    PROPOLIS_METHOD u64 reaching(u64 last, W weight, B bound) const {
        __shared__ u64 sums[BLOCK];
        __shared__ u64 found[2];
        static_assert(BLOCK >= 256, "a thread has a digit");
        u64 prefix = 0, wanted = 0;
#pragma unroll 1
        for (int low = 56; low >= 0; low -= 8) {
            if (low < 32 && (i64)1 << low >= places) continue;  // no place has this digit
            sums[thread_x()] = 0;
            __syncthreads();
            each(0, places, [&](f32 value, i64 place) {
                const u64 own = entry(value, place).both;
                const u64 digit = (own ^ prefix) >> low;
                if (own <= last && digit < 256) add_up(&sums[(u32)digit], (u64)weight(value));
            });
            __syncthreads();
            const u64 own = sums[thread_x()];
            const Scanned<u64> scanned = block_scan(own);
            if (low == 56) wanted = bound(scanned.total);
            if (scanned.before < wanted && wanted <= scanned.before + own) {
                found[0] = thread_x();
                found[1] = scanned.before;
            }
            __syncthreads();
            prefix |= found[0] << low;
            wanted -= found[1];
            __syncthreads();  // what was found is read
        }
        return prefix;
    }
    // How far below the peak a value may lie that weighs `least`: of weights in f32 some would tie.
    PROPOLIS_METHOD f64 lowest(f64 least) const {
        return least > 0 ? math::log(least) * (f64)temperature : -(f64)PROPOLIS_INF;
    }
    // Who wins of those from `begin` on: the first, and up to `last` those that weigh `least`.
    PROPOLIS_METHOD Leader leader(i64 begin, i64 end, i64 first, u64 last, f64 least) const {
        f32 most = -1;
        u64 which = ~0ull;
        const f64 bound = lowest(least);
        each(begin, end, [&](f32 value, i64 place) {
            const u64 own = entry(value, place).both;
            const f32 weighs = weight<f32>(value);
            const bool light = value != peak ? (f64)value - (f64)peak < bound : bound > 0;
            if (place != first && (own > last || light)) return;
            const f32 early = soon<f32>(weighs, place);
            if (early > most || (early == most && own < which)) {
                most = early;
                which = own;
            }
        });
        return winner<f32>(most, which);
    }
};

template <class T>
PROPOLIS_FN i64 drawn_of(const DrawnRow<T>& row, const T* values, const i64* ids, i64 head,
                         i64 count, f64 top_p, f64 min_p) {
    if (top_p <= 0) return ids[0];
    const int rank = (int)thread_x();
    const bool given = rank < head && rank < count;
    const f64 own = given ? row.template weight<f64>(wide(values[rank])) : 0;
    const Scanned<f64> sums = block_scan(own);
    f64 total = sums.total;
    bool known = count <= head;
    if (!known && count == row.places && top_p < 1) {
        total = row.sum();
        known = sums.total >= top_p * total;
    }
    if (!known && !(top_p < 1)) known = row.template weight<f64>(wide(values[head - 1])) < min_p;
    if (known) {
        const bool left = (!(top_p < 1) || sums.before < top_p * total) && own >= min_p;
        const f64 soon = given && (rank == 0 || left) ? row.template soon<f64>(own, ids[rank]) : -1;
        return ids[winner<f64>(soon, (u64)rank).entry];
    }
    u64 last = ~0ull;
    if (count < row.places) {
        last = row.reaching(last, [](f32) { return 1; }, [&](u64) { return (u64)count; });
    }
    if (top_p < 1) {
        const auto weight = [&](f32 value) { return row.template weight<f32>(value) * ONE; };
        const auto bound = [&](u64 all) {
            const f64 exact = top_p * (f64)all;
            return (u64)exact + ((f64)(u64)exact < exact ? 1 : 0);
        };
        last = row.reaching(last, weight, bound);
    }
    return ShortEntry{row.leader(0, row.places, ids[0], last, min_p).entry}.place();
}

template <class T>
PROPOLIS_FN DrawnRow<T> row_of(const T* x, const i64* keys, const f32* temperature,
                               const DrawShape& shape, i64 number, i64 first) {
    const T* from = x + number * shape.row;
    return DrawnRow<T>{from, shape.places, shape.step, (u64)keys[number * shape.keys],
                       wide(from[first * shape.step]), temperature[number * shape.temperature]};
}

// Of a number of each row, which may be none.
template <class T>
PROPOLIS_FN T own_of(const T* all, i64 at, T none) {
    return all ? all[at] : none;
}

template <class T>
PROPOLIS_FN void draw_rows(i64* out, const T* x, const i64* keys, const f32* temperature,
                           const i32* top_k, const f32* top_p, const f32* min_p, const T* values,
                           const i64* ids, const DrawShape& all) {
    for (i64 number = block_x(); number < again(all).rows; number += blocks_x()) {
        const i64 head = again(all).head;
        i64 found = ids[number * head];
        const DrawnRow<T> row = row_of(x, keys, temperature, again(all), number, found);
        if (row.is_drawn()) {
            i64 count = row.places;
            const i64 k = again(all).k, own = own_of(top_k, number * again(all).top_k, 0);
            if (k > 0 && k < count) count = k;
            if (own > 0 && own < count) count = own;
            found = drawn_of(row, values + number * head, ids + number * head, head, count,
                             own_of(top_p, number * again(all).top_p, 1.0f),
                             own_of(min_p, number * again(all).min_p, 0.0f));
        }
        if (thread_x() == 0) out[number] = found;
    }
}

// Who wins in each part of each row.
template <class T>
PROPOLIS_FN void draw_parts(Leader* to, const T* x, const i64* keys, const f32* temperature,
                            const f32* min_p, const i64* ids, const DrawShape& all) {
    for (i64 block = block_x(); block < again(all).rows * again(all).parts; block += blocks_x()) {
        const i64 number = block / again(all).parts;
        const i64 first = ids[number];
        const DrawnRow<T> row = row_of(x, keys, temperature, again(all), number, first);
        Leader found{0, 0, row.entry(row.peak, first).both};
        if (row.is_drawn()) {
            const i64 begin = (block - number * again(all).parts) * DRAWN_PART;
            const i64 end = begin + DRAWN_PART < row.places ? begin + DRAWN_PART : row.places;
            const f32 least = own_of(min_p, number * again(all).min_p, 0.0f);
            found = row.leader(begin, end, first, ~0ull, least);
        }
        if (thread_x() == 0) to[block] = found;
    }
}

PROPOLIS_KERNEL random_draw_merge(i64* out, const Leader* from, i64 rows, i64 parts) {
    for (i64 row = block_x(); row < rows; row += blocks_x()) {
        Leader best{-1, 0, ~0ull};
#pragma unroll 1
        for (i64 part = thread_x(); part < parts; part += BLOCK) {
            const Leader own = from[row * parts + part];
            if (own.soon > best.soon || (own.soon == best.soon && own.entry < best.entry)) best = own;
        }
        best = winner<f32>(best.soon, best.entry);
        if (thread_x() == 0) out[row] = ShortEntry{best.entry}.place();
    }
}

// Of rows that are in order, all that may be drawn: in f64, whose entries are no single numbers.
PROPOLIS_KERNEL random_draw_sorted_f64(i64* out, const i64* keys, const f32* temperature,
                                       const i32* top_k, const f32* top_p, const f32* min_p,
                                       const f64* values, const i64* ids, DrawShape shape) {
    for (i64 number = block_x(); number < shape.rows; number += blocks_x()) {
        const f64* x = values + number * shape.head;
        const i64* places = ids + number * shape.head;
        const f64 heat = temperature[number * shape.temperature];
        const u64 key = (u64)keys[number * shape.keys];
        i64 found = places[0];
        if (heat > 0 && !math::is_nan(x[0])) {
            const i64 own = top_k ? top_k[number * shape.top_k] : 0;
            const i64 count = own > 0 && own < shape.head ? own : shape.head;
            const f64 share = top_p ? (f64)top_p[number * shape.top_p] : 1.0;
            const f64 least = min_p ? (f64)min_p[number * shape.min_p] : 0.0;
            const auto weight = [&](i64 rank) {
                if (rank >= count) return 0.0;
                return x[rank] == x[0] ? 1.0 : math::exp((x[rank] - x[0]) / heat);
            };
            f64 total = 0;
            for (i64 rank = thread_x(); rank < count; rank += BLOCK) total += weight(rank);
            total = block_sum(total);
            f64 before = 0, most = -1;
            u64 which = ~0ull;
#pragma unroll 1
            for (i64 base = 0; base < count; base += BLOCK) {
                const i64 rank = base + thread_x();
                const f64 weighs = weight(rank);
                const Scanned<f64> sums = block_scan(weighs);
                const bool reached = share < 1 && before + sums.before >= share * total;
                before += sums.total;
                if (rank >= count || (rank > 0 && (reached || weighs < least))) continue;
                const f64 soon = weighs / -math::log1p(-chance<f64>(key, (u64)places[rank]));
                if (soon > most) {
                    most = soon;
                    which = (u64)rank;
                }
            }
            found = places[winner<f64>(most, which).entry];
        }
        if (thread_x() == 0) out[number] = found;
    }
}

#define DRAW(T)                                                                                   \
    PROPOLIS_KERNEL random_draw_rows_##T(i64* out, const T* x, const i64* keys,                   \
                                         const f32* temperature, const i32* top_k,                \
                                         const f32* top_p, const f32* min_p, const T* values,     \
                                         const i64* ids, DrawShape shape) {                       \
        draw_rows<T>(out, x, keys, temperature, top_k, top_p, min_p, values, ids, shape);         \
    }                                                                                             \
    PROPOLIS_KERNEL random_draw_parts_##T(Leader* to, const T* x, const i64* keys,                \
                                          const f32* temperature, const f32* min_p,               \
                                          const i64* ids, DrawShape shape) {                      \
        draw_parts<T>(to, x, keys, temperature, min_p, ids, shape);                               \
    }
DRAW(f32)
DRAW(f16)
DRAW(bf16)
DRAW(f8e4m3)
DRAW(f8e5m2)
