// Random numbers.  Semantics: core's propolis/ops/random.py.  A thread draws the four of a counter.
#include "propolis_elementwise.h"
#include "propolis_rounded.h"

struct Words {
    u32 at[4];
};

// Philox 4x32-10 (Salmon et al. 2011) of a counter below 2**128.
PROPOLIS_FN Words philox(u64 low, u64 high, u64 seed) {
    u32 c0 = (u32)low, c1 = (u32)(low >> 32), c2 = (u32)high, c3 = (u32)(high >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 p0 = (u64)c0 * 0xD2511F53u;
        const u64 p1 = (u64)c2 * 0xCD9E8D57u;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

// The upper 24 bits of a word: a fraction of 2**24, exact in f32.
PROPOLIS_FN f32 whole(u32 word) { return (f32)(word >> 8); }

template <class C>
PROPOLIS_FN void uniform_four(const Words& w, C low, C range, C* to) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        to[k] = low + rounded_product((C)(whole(w.at[k]) * 0x1p-24f), range);
    }
}

// Box and Muller (1958).  The angle is rounded to what sines are computed in, once.
template <class C>
PROPOLIS_FN void normal_four(const Words& w, C mean, C std, C* to) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        const C u = (C)((whole(w.at[k]) + 1.0f) * 0x1p-24f);
        const C radius = math::sqrt((C)-2 * math::log(u));
        const C angle = (C)((f64)(whole(w.at[k + 1]) * 0x1p-24f) * 6.283185307179586);
        to[k] = mean + rounded_product(radius * math::cos(angle), std);
        to[k + 1] = mean + rounded_product(radius * math::sin(angle), std);
    }
}

// Elements `begin` to `begin + n` of the tensor, which `s` walks from the first of them on.
template <class T, class F>
PROPOLIS_FN void draw(T* target, i64 begin, i64 n, u64 seed, u64 offset, const Strided& s, F four) {
    const bool rows = s.strides[0][s.rank - 1] == 1 && s.run >= 4 && begin % 4 == 0;
    const bool packed = rows && aligned<4>(target);
    const i64 first = begin / 4;
    const i64 counters = (begin + n + 3) / 4 - first;
    const Span span = span_of(1);
    for (i64 i = span.first; i < counters; i += span.step) {
        const u64 counter = offset + (u64)(first + i);
        Compute<T> values[4];
        four(philox(counter, counter < offset ? 1 : 0, seed), values);
        const i64 at = (first + i) * 4 - begin;
        if (packed) {
            constexpr int N = sizeof(T) == 8 ? 2 : 4;
            T* to = target + locate(again(s), at).at[0];
#pragma unroll
            for (int k = 0; k < 4; k += N) {
                Pack<T, N> pack;
#pragma unroll
                for (int e = 0; e < N; ++e) pack.at[e] = narrow<T>(values[k + e]);
                store_pack<N>(to + k, pack);
            }
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 place = at + k;
            if (place >= 0 && place < n) {
                target[locate(again(s), place).at[0]] = narrow<T>(values[k]);
            }
        }
    }
}

#define RANDOM(op, T, C)                                                                          \
    PROPOLIS_KERNEL random_##op##_##T(T* target, i64 begin, i64 n, u64 seed, u64 offset, C first, \
                                      C second, Strided s) {                                      \
        draw(target, begin, n, seed, offset, s,                                                   \
             [&](const Words& w, C* to) { op##_four(w, first, second, to); });                    \
    }
#define BOTH(T, C)        \
    RANDOM(uniform, T, C) \
    RANDOM(normal, T, C)
BOTH(f64, f64)
BOTH(f32, f32)
BOTH(f16, f32)
BOTH(bf16, f32)
BOTH(f8e4m3, f32)
BOTH(f8e5m2, f32)
