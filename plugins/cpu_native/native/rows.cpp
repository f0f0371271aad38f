// Operations on rows, and element by element.
#include "kernels.h"
#include "pool.h"

namespace propolis {
namespace {

// Elements that are worth a thread, and of a task.
constexpr i64 WORTH = 1 << 14;

template <class F>
void over_rows(i64 rows, i64 width, int threads, F&& each) {
    const i64 some = width < 1 ? 1 : (WORTH / 4 + width - 1) / width;
    parallel(rows * width < WORTH ? 1 : threads, (rows + some - 1) / some, [&](i64 task) {
        const i64 end = (task + 1) * some < rows ? (task + 1) * some : rows;
        for (i64 row = task * some; row < end; ++row) each(row);
    });
}

template <class F>
void over_elements(i64 count, int threads, F&& each) {
    constexpr i64 SOME = WORTH / 2;
    parallel(count < WORTH ? 1 : threads, (count + SOME - 1) / SOME, [&](i64 task) {
        const i64 end = (task + 1) * SOME < count ? (task + 1) * SOME : count;
        for (i64 i = task * SOME; i < end; i += LANES) each(i, end - i);
    });
}

}  // namespace

void rms_norm(Kind kind, void* out, void* total, const void* x, const void* residual,
              const void* weight, i64 rows, i64 width, f32 eps, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_rows(rows, width, threads, [&](i64 row) {
            const T* from = (const T*)x + row * width;
            T* to = (T*)out + row * width;
            if (residual) {
                const T* other = (const T*)residual + row * width;
                T* both = (T*)total + row * width;
                for (i64 i = 0; i < width; i += LANES) {
                    const i64 left = width - i;
                    store_some(both + i, load_some(from + i, left) + load_some(other + i, left), left);
                }
                from = both;
            }
            F32s squares[2] = {splat(0.0f), splat(0.0f)};
            for (i64 i = 0; i < width; i += LANES) {
                const F32s v = load_some(from + i, width - i);
                F32s& to_add = squares[i / LANES & 1];
                to_add = fma(v, v, to_add);
            }
            const f32 mean = sum(squares[0] + squares[1]) / (f32)width;
            const F32s inverse = splat(1.0f / __builtin_sqrtf(mean + eps));
            for (i64 i = 0; i < width; i += LANES) {
                const i64 left = width - i;
                const F32s w = load_some((const T*)weight + i, left);
                store_some(to + i, load_some(from + i, left) * inverse * w, left);
            }
        });
    });
}

void layer_norm(Kind kind, void* out, const void* x, const void* weight, const void* bias, i64 rows,
                i64 width, f32 eps, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_rows(rows, width, threads, [&](i64 row) {
            const T* from = (const T*)x + row * width;
            T* to = (T*)out + row * width;
            F32s total = splat(0.0f);
            for (i64 i = 0; i < width; i += LANES) total = total + load_some(from + i, width - i);
            const f32 mean = sum(total) / (f32)width;
            F32s squares = splat(0.0f);
            for (i64 i = 0; i < width; i += LANES) {
                F32s v = load_some(from + i, width - i) - splat(mean);
                if (width - i < LANES) {
                    f32 each[LANES];
                    store(each, v);
                    for (i64 e = width - i; e < LANES; ++e) each[e] = 0;
                    v = load(each);
                }
                squares = fma(v, v, squares);
            }
            const F32s inverse = splat(1.0f / __builtin_sqrtf(sum(squares) / (f32)width + eps));
            for (i64 i = 0; i < width; i += LANES) {
                const i64 left = width - i;
                F32s v = (load_some(from + i, left) - splat(mean)) * inverse;
                v = v * load_some((const T*)weight + i, left);
                if (bias) v = v + load_some((const T*)bias + i, left);
                store_some(to + i, v, left);
            }
        });
    });
}

void pairwise(Pairwise op, Kind kind, void* out, const Stepped& a, const Stepped& b, i64 rows, i64 width,
              int threads) {
    const bool flat = a.step == width && b.step == width;
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        auto with = [&](auto combine) {
            auto some = [&](T* to, const T* x, const T* y, i64 left) PROPOLIS_INLINED {
                store_some(to, combine(load_some(x, left), load_some(y, left)), left);
            };
            T* const to = (T*)out;
            const T *const x = (const T*)a.at, *const y = (const T*)b.at;
            if (flat) {
                return over_elements(rows * width, threads,
                                     [&](i64 i, i64 left) PROPOLIS_INLINED { some(to + i, x + i, y + i, left); });
            }
            over_rows(rows, width, threads, [&](i64 row) {
                for (i64 i = 0; i < width; i += LANES) {
                    some(to + row * width + i, x + row * a.step + i, y + row * b.step + i, width - i);
                }
            });
        };
        switch (op) {
            case Pairwise::ADD: return with([](const F32s& x, const F32s& y) PROPOLIS_INLINED { return x + y; });
            case Pairwise::SUB: return with([](const F32s& x, const F32s& y) PROPOLIS_INLINED { return x - y; });
            case Pairwise::MUL: return with([](const F32s& x, const F32s& y) PROPOLIS_INLINED { return x * y; });
            case Pairwise::SILU_MUL:
                return with([](const F32s& x, const F32s& y) PROPOLIS_INLINED { return silu(x) * y; });
            case Pairwise::GELU_ERF_MUL:
                return with([](const F32s& x, const F32s& y) PROPOLIS_INLINED { return gelu_erf(x) * y; });
        }
    });
}

namespace {
// The first of the largest; a NaN is larger than any number.
template <class T>
i64 place_of_largest(const T* x, i64 width) {
    constexpr i64 SOME = 64 * LANES;
    constexpr f32 LEAST = -__builtin_inff();
    f32 best = LEAST, odd = 0;  // of what is not finite, NaN
    F32s odds = splat(0.0f);
    i64 at = 0;
    for (i64 first = 0; first < width; first += SOME) {
        const i64 end = first + SOME < width ? first + SOME : width;
        F32s tops = splat(LEAST);
        i64 i = first;
        for (; i + LANES <= end; i += LANES) {
            const F32s v = load_wide(x + i);
            tops = larger(v, tops);
            odds = fma(v, splat(0.0f), odds);
        }
        f32 top = largest(tops);
        for (; i < end; ++i) {
            const f32 v = wide(x[i]);
            if (v > top) top = v;
            odd += v * 0.0f;
        }
        if (top > best) {
            best = top;
            at = first;
        }
    }
    odd += sum(odds);
    if (odd == odd) {
        while (wide(x[at]) != best) ++at;
        return at;
    }
    at = 0;
    for (i64 i = 0; i < width; ++i) {
        const f32 v = wide(x[i]);
        if (v != v) return i;
        if (v > wide(x[at])) at = i;
    }
    return at;
}
}  // namespace

void largest_of_rows(Kind kind, void* out, bool places, const Stepped& x, i64 rows, i64 width, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_rows(rows, width, threads, [&](i64 row) {
            const T* from = (const T*)x.at + row * x.step;
            const i64 at = place_of_largest(from, width);
            if (places) ((i64*)out)[row] = at;
            else ((T*)out)[row] = from[at];
        });
    });
}

// -- positions -------------------------------------------------------------------------------------

namespace {
i64 position_at(const View& p, bool wide_ids, i64 b, i64 t) {
    const i64 at = b * p.strides[0] + t * p.strides[1];
    return wide_ids ? ((const i64*)p.at)[at] : ((const i32*)p.at)[at];
}
}  // namespace

i64 outside(const View& positions, bool positions_64, i64 limit, i64* which) {
    for (i64 b = 0; b < positions.shape[0]; ++b) {
        for (i64 t = 0; t < positions.shape[1]; ++t) {
            const i64 at = position_at(positions, positions_64, b, t);
            if (at < 0 || at >= limit) {
                *which = at;
                return b * positions.shape[1] + t;
            }
        }
    }
    return -1;
}

namespace {
// One head, as another type where it is kept so; `half` pairs of it, and the rest as it is.
template <class T, class To>
PROPOLIS_INLINE void turn(const T* from, To* to, const f32* c, const f32* s, i64 half, i64 dim, bool interleaved) {
    if (interleaved) {
        for (i64 i = 0; i < half; ++i) {
            const f32 first = wide(from[2 * i]), second = wide(from[2 * i + 1]);
            to[2 * i] = narrow<To>(first * c[i] - second * s[i]);
            to[2 * i + 1] = narrow<To>(first * s[i] + second * c[i]);
        }
    } else {
        for (i64 i = 0; i < half; i += LANES) {
            const i64 left = half - i;
            const F32s first = load_some(from + i, left);
            const F32s second = load_some(from + half + i, left);
            const F32s ci = load_some(c + i, left), si = load_some(s + i, left);
            store_some(to + i, first * ci - second * si, left);
            store_some(to + half + i, first * si + second * ci, left);
        }
    }
    if constexpr (std::is_same_v<T, To>) {
        if (2 * half < dim) std::memcpy(to + 2 * half, from + 2 * half, (dim - 2 * half) * sizeof(T));
    } else {
        for (i64 i = 2 * half; i < dim; i += LANES) store_some(to + i, load_some(from + i, dim - i), dim - i);
    }
}
}  // namespace

void rope(Kind kind, const View& out, const View& x, const View& positions, bool positions_64,
          const View& cos, const View& sin, bool interleaved, int threads) {
    const i64 tokens = x.shape[1], heads = x.shape[2], dim = x.shape[3], half = cos.shape[1];
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        over_rows(x.shape[0] * tokens, heads * dim, threads, [&](i64 row) {
            const i64 b = row / tokens, t = row % tokens;
            const i64 at = position_at(positions, positions_64, b, t);
            const f32* c = (const f32*)cos.at + at * cos.strides[0];
            const f32* s = (const f32*)sin.at + at * sin.strides[0];
            for (i64 h = 0; h < heads; ++h) {
                const T* from = (const T*)x.at + b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
                turn(from, (T*)out.at + (row * heads + h) * dim, c, s, half, dim, interleaved);
            }
        });
    });
}

namespace {
template <class T, class To>
void turn_into(const View& cache, const View& x, const View& slots, const View& positions, const View& cos,
               const View& sin, bool interleaved, int threads) {
    const i64 tokens = x.shape[0] * x.shape[1], heads = x.shape[2], dim = x.shape[3], half = cos.shape[1];
    const auto some = [&](i64 first, i64 end) {  // heads
        for (i64 row = 0; row < tokens; ++row) {
            const i64 b = row / x.shape[1], t = row % x.shape[1];
            const i64 at = position_at(positions, false, b, t), slot = position_at(slots, false, b, t);
            const f32* c = (const f32*)cos.at + at * cos.strides[0];
            const f32* s = (const f32*)sin.at + at * sin.strides[0];
            for (i64 h = first; h < end; ++h) {
                const T* from = (const T*)x.at + b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
                To* to = (To*)cache.at + b * cache.strides[0] + slot * cache.strides[1] + h * cache.strides[2];
                turn(from, to, c, s, h < heads / 2 ? half : 0, dim, interleaved);
            }
        }
    };
    // By heads: of tokens of one slot the last one stays.
    if (tokens * heads * dim < WORTH) some(0, heads);
    else parallel(threads, heads, [&](i64 head) { some(head, head + 1); });
}
}  // namespace

void rope_kv_append(Kind given, Kind kind, const View& cache, const View& x, const View& slots,
                    const View& positions, const View& cos, const View& sin, bool interleaved, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) To;
        if (given == kind) turn_into<To, To>(cache, x, slots, positions, cos, sin, interleaved, threads);
        else turn_into<f32, To>(cache, x, slots, positions, cos, sin, interleaved, threads);
    });
}

void kv_append(int size, const View& cache, const View& x, const View& positions, bool positions_64) {
    const bool packed = cache.strides[3] == 1 && x.strides[3] == 1;
    for (i64 b = 0; b < x.shape[0]; ++b) {
        for (i64 t = 0; t < x.shape[1]; ++t) {
            const i64 at = position_at(positions, positions_64, b, t);
            for (i64 h = 0; h < x.shape[2]; ++h) {
                char* to = (char*)cache.at +
                           size * (b * cache.strides[0] + at * cache.strides[1] + h * cache.strides[2]);
                const char* from = (const char*)x.at +
                                   size * (b * x.strides[0] + t * x.strides[1] + h * x.strides[2]);
                if (packed) {
                    std::memcpy(to, from, size * x.shape[3]);
                    continue;
                }
                for (i64 e = 0; e < x.shape[3]; ++e) {
                    std::memcpy(to + e * size * cache.strides[3], from + e * size * x.strides[3], size);
                }
            }
        }
    }
}

}  // namespace propolis
