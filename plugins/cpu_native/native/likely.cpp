// Of rows of numbers the largest, in order, and what share of exp() each has: what tokens are drawn from, and how.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace propolis {
namespace {

// A number and where it lay, as one number, so that what is less comes first: the larger, of equal ones the
// first, and before all of them NaN.
u64 ordered(f32 value, i64 at) {
    const u32 bits = bits_as<u32>(value + 0.0f);  // of both zeros the same
    const u32 upwards = value != value ? ~0u : bits >> 31 ? ~bits : bits | 1u << 31;
    return (u64)~upwards << 32 | (u64)at;
}

// Whether there is one in `s` that is not below `bound`; NaN is not.
PROPOLIS_INLINE bool any_from(const F32s& s, f32 bound) {
    i32v found = {};
    PROPOLIS_EACH found |= ~(s.part[p] < bound - f32v{});
    i32 each[VECTOR / sizeof(i32)];
    std::memcpy(each, &found, VECTOR);
    i32 any = 0;
    for (i32 one : each) any |= one;
    return any != 0;
}

// A number that at least k of a row are not below, close to the last of them: the elements are shared out
// among groups, of each of which the largest counts.
template <class T>
f32 bound_of_row(const T* x, i64 width, i64 k) {
    const i64 deep = width / (4 * k), groups = deep < 1 ? 0 : width / (deep * LANES) * LANES;
    if (groups < k) return -__builtin_inff();
    std::vector<f32> tops(groups);
    for (i64 g = 0; g < groups; g += LANES, x += deep * LANES) {
        F32s top = splat(-__builtin_inff());
        for (i64 i = 0; i < deep; ++i) top = larger(load_wide(x + i * LANES), top);
        store(&tops[g], top);
    }
    std::nth_element(tops.begin(), tops.begin() + (k - 1), tops.end(), std::greater<f32>());
    return tops[k - 1];
}

template <class T>
void first_of_row(T* values, i64* places, const T* x, i64 width, i64 k) {
    const f32 bound = bound_of_row(x, width, k);
    std::vector<u64> found;
    found.reserve(2 * k);
    const auto look = [&](i64 i) {
        const f32 value = wide(x[i]);
        if (!(value < bound)) found.push_back(ordered(value, i));
    };
    i64 i = 0;
    for (; i + LANES <= width; i += LANES) {
        if (!any_from(load_wide(x + i), bound)) continue;
        for (i64 e = i; e < i + LANES; ++e) look(e);
    }
    for (; i < width; ++i) look(i);
    if ((i64)found.size() > 2 * k) {
        std::nth_element(found.begin(), found.begin() + (k - 1), found.end());
        found.resize(k);
    }
    std::sort(found.begin(), found.end());
    for (i64 which = 0; which < k; ++which) {
        places[which] = (i64)(u32)found[which];
        values[which] = x[places[which]];
    }
}

template <class T>
void shares_of_row(T* out, const T* x, i64 width) {
    // NaN and a row of infinities make NaN of it: what is below the largest is NaN then.
    f32 top = -__builtin_inff();
    i64 i = 0;
    F32s tops = splat(top);
    for (; i + LANES <= width; i += LANES) tops = larger(load_wide(x + i), tops);
    top = largest(tops);
    for (; i < width; ++i) top = wide(x[i]) > top ? wide(x[i]) : top;
    F32s sums[2] = {splat(0.0f), splat(0.0f)};
    const auto below = [&](i64 at) PROPOLIS_INLINED { return exp_below(load_wide(x + at) - splat(top)); };
    for (i = 0; i + 2 * LANES <= width; i += 2 * LANES) {
        sums[0] = sums[0] + below(i);
        sums[1] = sums[1] + below(i + LANES);
    }
    f32 total = sum(sums[0] + sums[1]);
    for (; i < width; i += LANES) {
        f32 each[LANES];
        store(each, exp_below(load_some(x + i, width - i) - splat(top)));
        for (i64 e = 0; e < LANES && i + e < width; ++e) total += each[e];
    }
    const F32s inverse = splat(1.0f / total);
    for (i = 0; i < width; i += LANES) {
        const i64 left = width - i;
        store_some(out + i, exp_below(load_some(x + i, left) - splat(top)) * inverse, left);
    }
}

// -- draws: see core's propolis/ops/random.py -----------------------------------------------------

PROPOLIS_INLINE U32s mixed(U32s h) {
    h = (h ^ h >> 16) * splat<U32s>(0x85EBCA6Bu);
    h = (h ^ h >> 13) * splat<U32s>(0xC2B2AE35u);
    return h ^ h >> 16;
}
// The hashes of sixteen places from `place` on.
PROPOLIS_INLINE U32s hashes(u64 key, u32 place) {
    alignas(VECTOR) static constexpr u32 UPWARDS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const U32s places = load_bytes<U32s>(UPWARDS) + splat<U32s>(place + (u32)key);
    return mixed(mixed(places) + splat<U32s>((u32)(key >> 32)));
}

// How the places of a row are drawn from: by their weights, of which the largest is 1.
struct Odds {
    u64 key;
    f32 peak, temperature;
    double least;

    double weight(f32 value) const {
        return value == peak ? 1.0 : std::exp(((double)value - (double)peak) / (double)temperature);
    }
    // How early a place comes: the largest wins.
    double soon(double weight, i64 place) const {
        u32 each[LANES];
        const U32s some = hashes(key, (u32)place);
        std::memcpy(each, &some, sizeof each);
        return weight / -std::log1p(-((double)each[0] + 0.5) * 0x1p-32);
    }
};

// Who wins of all places; the first in order may weigh too little.
template <class T>
i64 drawn_of_all(const Odds& odds, const T* x, i64 width, i64 first) {
    double most = odds.soon(1.0, first);
    i64 found = first;
    const auto look = [&](i64 place) {
        const double weight = odds.weight(wide(x[place]));
        if (weight < odds.least) return;
        const double soon = odds.soon(weight, place);
        if (soon > most) most = soon, found = place;
    };
    i64 i = 0;
    if (odds.peak - odds.peak == 0) {
        const F32s heat = splat(odds.temperature), peak = splat(odds.peak);
        for (; i + LANES <= width; i += LANES) {
            // No earlier than weight / chance, and these are off by less than that.
            const F32s weights = exp_below((load_wide(x + i) - peak) / heat) * splat(1.0f + 0x1p-12f);
            const F32s chances = as_floats(hashes(odds.key, (u32)i) >> 1) * splat(0x1p-31f);
            if (!any_from(weights - chances * splat((f32)most), 0.0f)) continue;
            for (i64 e = i; e < i + LANES; ++e) look(e);
        }
    }
    for (; i < width; ++i) look(i);
    return found;
}

template <class T>
double weight_of_all(const Odds& odds, const T* x, i64 width) {
    double total = 0;
    const F32s heat = splat(odds.temperature), peak = splat(odds.peak);
    i64 i = 0;
    if (odds.peak - odds.peak == 0) {
        for (; i + LANES <= width; i += LANES) total += (double)sum(exp_below((load_wide(x + i) - peak) / heat));
    }
    for (; i < width; ++i) total += odds.weight(wide(x[i]));
    return total;
}

// Of `count` candidates, which are as many as there are or few; those that `top_p` leaves are sought among more and
// more of the likeliest.
template <class T>
i64 drawn_of_few(const Odds& odds, const T* x, i64 width, i64 count, double top_p) {
    constexpr i64 SOME = 256;
    double total = count < width ? -1 : weight_of_all(odds, x, width);
    std::vector<T> values;
    std::vector<i64> places;
    std::vector<double> weights;
    for (i64 head = count < width || width < SOME ? count : SOME;; head = head * 16 < width ? head * 16 : width) {
        values.resize(head), places.resize(head), weights.resize(head);
        first_of_row(values.data(), places.data(), x, width, head);
        double sum = 0;
        for (i64 i = 0; i < head; ++i) sum += weights[i] = odds.weight(wide(values[i]));
        if (total < 0 || head == width) total = sum;
        if (!(top_p < 1) || sum >= top_p * total || head == width) break;
    }
    double before = 0, most = -1;
    i64 found = places[0];
    for (i64 i = 0; i < (i64)places.size(); ++i) {
        if (i > 0 && ((top_p < 1 && before >= top_p * total) || weights[i] < odds.least)) break;
        before += weights[i];
        const double soon = odds.soon(weights[i], places[i]);
        if (soon > most) most = soon, found = places[i];
    }
    return found;
}

template <class T>
i64 drawn_of_row(const T* x, i64 width, u64 key, f32 temperature, i64 count, f32 top_p, f32 min_p) {
    // Sixteen at a time, until there is one that is not below what was found: seldom, but at first.
    f32 peak = wide(x[0]);
    i64 first = 0;
    const auto look = [&](i64 i) {
        const f32 value = wide(x[i]);
        if (!(value <= peak) && peak == peak) peak = value, first = i;
    };
    i64 i = 0;
    for (; i + LANES <= width && peak == peak; i += LANES) {
        if (!any_from(load_wide(x + i), peak)) continue;
        for (i64 e = i; e < i + LANES; ++e) look(e);
    }
    for (; i < width; ++i) look(i);
    if (!(temperature > 0) || peak != peak) return first;
    const Odds odds{key, peak, temperature, (double)min_p};
    if (count == width && !(top_p < 1)) return drawn_of_all(odds, x, width, first);
    return drawn_of_few(odds, x, width, count, (double)top_p);
}

// A row is a task: they are long.
template <class F>
void over_long_rows(i64 rows, i64 width, int threads, F&& each) {
    parallel(rows * width < (1 << 14) ? 1 : threads, rows, each);
}

}  // namespace

void first_of_rows(Kind kind, void* values, void* places, const Stepped& x, i64 rows, i64 width, i64 k,
                   int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_long_rows(rows, width, threads, [&](i64 row) {
            first_of_row((T*)values + row * k, (i64*)places + row * k, (const T*)x.at + row * x.step, width, k);
        });
    });
}

void draw(Kind kind, i64* out, const Stepped& x, const Draws& by, i64 rows, i64 width, i64 k, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_long_rows(rows, width, threads, [&](i64 row) {
            i64 count = k > 0 && k < width ? k : width;
            if (by.top_k && by.top_k[row] > 0 && by.top_k[row] < count) count = by.top_k[row];
            out[row] = drawn_of_row((const T*)x.at + row * x.step, width, (u64)by.keys[row], by.temperature[row], count,
                                    by.top_p ? by.top_p[row] : 1.0f, by.min_p ? by.min_p[row] : 0.0f);
        });
    });
}

void softmax(Kind kind, void* out, const Stepped& x, i64 rows, i64 width, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_long_rows(rows, width, threads, [&](i64 row) {
            shares_of_row((T*)out + row * width, (const T*)x.at + row * x.step, width);
        });
    });
}

}  // namespace propolis
