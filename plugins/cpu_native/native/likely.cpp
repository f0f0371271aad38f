// Of rows of numbers the largest, in order, and what share of exp() each has: what tokens are drawn from.
#include <algorithm>
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

void softmax(Kind kind, void* out, const Stepped& x, i64 rows, i64 width, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_long_rows(rows, width, threads, [&](i64 row) {
            shares_of_row((T*)out + row * width, (const T*)x.at + row * x.step, width);
        });
    });
}

}  // namespace propolis
