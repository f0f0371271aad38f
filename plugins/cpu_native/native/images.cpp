// Norms of groups of channels, and larger images.
#include <algorithm>
#include <memory>

#include "kernels.h"
#include "pool.h"

namespace propolis {
namespace {

constexpr i64 WORTH = 1 << 14;  // elements that are worth a thread
constexpr i64 SOME = 1 << 11;   // that are summed in f32 before their sum joins the others'

// The sum of f(vector) over elements, those beyond the last left out.
template <class T, class F>
double sum_of(const T* from, i64 count, F&& f) {
    double total = 0;
    for (i64 start = 0; start < count; start += SOME) {
        const i64 end = std::min(count, start + SOME);
        F32s sums[2] = {splat(0.0f), splat(0.0f)};
        i64 i = start;
        for (; i + LANES <= end; i += LANES) {
            F32s& one = sums[i / LANES & 1];
            one = one + f(load_wide(from + i));
        }
        total += sum(sums[0] + sums[1]);
        for (; i < end; ++i) {
            f32 each[LANES];
            store(each, f(splat(wide(from[i]))));
            total += each[0];
        }
    }
    return total;
}

}  // namespace

void group_norm(Kind kind, void* out, const void* x, const void* weight, const void* bias, i64 batch,
                i64 channels, i64 positions, i64 groups, f32 eps, bool with_silu, int threads) {
    with_type(kind, [&](auto type) {
        typedef decltype(type) T;
        const i64 own = channels / groups, count = own * positions;
        parallel(batch * groups * count < WORTH ? 1 : threads, batch * groups, [&](i64 task) {
            const T* from = (const T*)x + task * count;
            T* to = (T*)out + task * count;
            const f32 mean = (f32)(sum_of(from, count, [](const F32s& v) PROPOLIS_INLINED { return v; }) / (double)count);
            const double squares = sum_of(from, count, [&](const F32s& v) PROPOLIS_INLINED {
                const F32s d = v - splat(mean);
                return d * d;
            });
            const f32 inverse = 1.0f / __builtin_sqrtf((f32)(squares / (double)count) + eps);
            for (i64 c = 0; c < own; ++c, from += positions, to += positions) {
                const i64 channel = task % groups * own + c;
                const F32s w = splat(weight ? wide(((const T*)weight)[channel]) : 1.0f);
                const F32s b = splat(bias ? wide(((const T*)bias)[channel]) : 0.0f);
                for (i64 i = 0; i < positions; i += LANES) {
                    const i64 left = positions - i;
                    F32s v = (load_some(from + i, left) - splat(mean)) * splat(inverse);
                    v = fma(v, w, b);
                    store_some(to + i, with_silu ? silu(v) : v, left);
                }
            }
        });
    });
}

void upsample_nearest(int size, void* out, const void* from, i64 planes, i64 height, i64 width,
                      i64 out_height, i64 out_width, int threads) {
    const std::unique_ptr<i64[]> columns(new i64[out_width]);
    for (i64 x = 0; x < out_width; ++x) columns[x] = x * width / out_width;
    auto of = [&](auto type) {
        typedef decltype(type) T;
        parallel(planes * out_height * out_width < WORTH ? 1 : threads, planes, [&](i64 plane) {
            const T* image = (const T*)from + plane * height * width;
            T* to = (T*)out + plane * out_height * out_width;
            for (i64 y = 0; y < out_height; ++y, to += out_width) {
                const i64 row = y * height / out_height;
                if (y && row == (y - 1) * height / out_height) {
                    std::copy(to - out_width, to, to);
                    continue;
                }
                const T* at = image + row * width;
                if (out_width == 2 * width) {
                    for (i64 x = 0; x < width; ++x) to[2 * x] = to[2 * x + 1] = at[x];
                } else {
                    for (i64 x = 0; x < out_width; ++x) to[x] = at[columns[x]];
                }
            }
        });
    };
    switch (size) {
        case 1: return of(u8{});
        case 2: return of(u16{});
        case 4: return of(u32{});
        default: return of(u64{});
    }
}

}  // namespace propolis
