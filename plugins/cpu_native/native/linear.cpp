// Linear layers, in f32.
#include <algorithm>

#include "kernels.h"
#include "pool.h"
#include "products.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 DEEP = 256;                   // elements that are summed at a time
constexpr i64 PANEL = LANES * MOST_ACROSS;  // outputs that one block of products takes
constexpr i64 DOWN = 16 * ROWS;             // rows of a task, by
constexpr i64 PANELS = 4;                   // panels

i64 parts(i64 count, i64 size) { return (count + size - 1) / size; }

// Elements [d0, d0 + depth) of outputs from `first` on, side by side: to[d][PANEL].
template <class T>
void pack_panel(const Linear& l, i64 first, i64 d0, i64 depth, f32* to) {
    for (i64 n = 0; n < PANEL; ++n) {
        const T* from = (const T*)l.w + std::min(first + n, l.outputs - 1) * l.depth + d0;
        for (i64 d = 0; d < depth; ++d) to[d * PANEL + n] = wide(from[d]);
    }
}

template <class T>
void linear_of(const Linear& l) {
    const i64 panels = parts(l.outputs, PANEL);
    thread_local Room<> room;
    f32* right = room.of(panels * PANEL * l.depth);  // right[panel][DEEP elements at a time][PANEL]
    parallel(l.threads, panels, [&](i64 panel) {
        for (i64 d = 0; d < l.depth; d += DEEP) {
            pack_panel<T>(l, panel * PANEL, d, std::min(DEEP, l.depth - d), right + (panel * l.depth + d) * PANEL);
        }
    });
    const i64 across = parts(panels, PANELS);
    parallel(l.threads, across * parts(l.rows, DOWN), [&](i64 task) {
        thread_local Room<> factor_room, sum_room;
        f32 *left = factor_room.of(DOWN * DEEP), *sums = sum_room.of(DOWN * PANELS * PANEL);
        const i64 m0 = task / across * DOWN, rows = std::min(DOWN, l.rows - m0);
        const i64 p0 = task % across * PANELS, some = std::min(PANELS, panels - p0);
        if (l.depth == 0) std::fill(sums, sums + DOWN * PANELS * PANEL, 0.0f);
        for (i64 d0 = 0; d0 < l.depth; d0 += DEEP) {
            const i64 depth = std::min(DEEP, l.depth - d0);
            for (i64 i = 0; i < parts(rows, ROWS) * ROWS; ++i) {
                const T* from = (const T*)l.x + (m0 + std::min(i, rows - 1)) * l.depth + d0;
                for (i64 d = 0; d < depth; d += LANES) {
                    store_some(left + i * DEEP + d, load_some(from + d, depth - d), depth - d);
                }
            }
            for (i64 p = 0; p < some; ++p) {
                for (i64 i = 0; i < rows; i += ROWS) {
                    multiply_block<MOST_ACROSS>(sums + (i * PANELS + p) * PANEL, PANELS * PANEL, left + i * DEEP, DEEP,
                                                right + ((p0 + p) * l.depth + d0) * PANEL, depth, d0 > 0);
                }
            }
        }
        for (i64 i = 0; i < rows; ++i) {
            for (i64 n = p0 * PANEL; n < std::min(l.outputs, (p0 + some) * PANEL); n += LANES) {
                const i64 left_over = l.outputs - n;
                F32s y = load(sums + i * PANELS * PANEL + n - p0 * PANEL);
                if (l.bias) y = y + load_some((const T*)l.bias + n, left_over);
                store_some((T*)l.out + (m0 + i) * l.outputs + n, y, left_over);
            }
        }
    });
}

constexpr i64 FEW = 16;     // fewer rows take weights as they lie: to read them is most of the work
constexpr int CHAINS = 4;   // sums of a product that do not wait for each other: every fourth vector's
constexpr i64 GROUPS = 2;   // of LANES outputs, that are a task
constexpr int OUTPUTS = 2;  // that some rows are multiplied with at a time
constexpr int ABREAST = VECTOR == 64 ? 4 : VECTOR == 32 ? 2 : 1;  // such rows: as many as there are registers for

// A product of one row, by all chains at a time: weights are read from one end to the other, what hardware foresees.
template <class T>
PROPOLIS_INLINE F32s product_of_one(const T* w, const f32* x, i64 depth) {
    F32s some[CHAINS];
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; ++c) some[c] = splat(0.0f);
    i64 d = 0;
    for (; d + CHAINS * LANES <= depth; d += CHAINS * LANES) {
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; ++c) {
            some[c] = fma(load_wide(w + d + c * LANES), load(x + d + c * LANES), some[c]);
        }
    }
    for (; d < depth; d += LANES) some[0] = fma(load_some(w + d, depth - d), load(x + d), some[0]);
    return (some[0] + some[1]) + (some[2] + some[3]);
}

// Products of as many rows by as many outputs, chain after chain, to the bit those of each row alone.  Those who are
// the first to read these weights fetch the next ones.
template <class T, int ROWS_>
PROPOLIS_INLINE void products_of_some(const T* const (&w)[OUTPUTS], const f32* x, i64 step, i64 depth, bool first,
                                      F32s (&products)[ROWS_][OUTPUTS]) {
    const i64 whole = depth / (CHAINS * LANES) * (CHAINS * LANES);
    F32s chains[CHAINS][ROWS_][OUTPUTS];
    for (int c = 0; c < CHAINS; ++c) {
        F32s sums[ROWS_][OUTPUTS];
        const auto each = [&](auto visit) PROPOLIS_INLINED {
#pragma GCC unroll 4
            for (int r = 0; r < ROWS_; ++r) {
#pragma GCC unroll 2
                for (int n = 0; n < OUTPUTS; ++n) visit(r, n);
            }
        };
        const auto add = [&](i64 d, i64 left) PROPOLIS_INLINED {
            F32s factor[OUTPUTS];
#pragma GCC unroll 2
            for (int n = 0; n < OUTPUTS; ++n) factor[n] = load_some(w[n] + d, left);
            each([&](int r, int n) PROPOLIS_INLINED {
                sums[r][n] = fma(factor[n], load(x + r * step + d), sums[r][n]);
            });
        };
        each([&](int r, int n) PROPOLIS_INLINED { sums[r][n] = splat(0.0f); });
        if (first) {
            for (i64 d = c * LANES; d < whole; d += CHAINS * LANES) {
                // Chains read every fourth vector, what hardware does not foresee; into L2, as L1 has no room for them.
                for (int n = 0; n < OUTPUTS; ++n) __builtin_prefetch(w[n] + OUTPUTS * depth + d, 0, 2);
                add(d, LANES);
            }
        } else {
            for (i64 d = c * LANES; d < whole; d += CHAINS * LANES) add(d, LANES);
        }
        for (i64 d = whole; c == 0 && d < depth; d += LANES) add(d, depth - d);
        each([&](int r, int n) PROPOLIS_INLINED { chains[c][r][n] = sums[r][n]; });
    }
    for (int r = 0; r < ROWS_; ++r) {
        for (int n = 0; n < OUTPUTS; ++n) {
            products[r][n] = (chains[0][r][n] + chains[1][r][n]) + (chains[2][r][n] + chains[3][r][n]);
        }
    }
}

// All rows by LANES outputs, of which only those that there are are written.
template <class T>
void outputs_of_few(const Linear& l, const f32* x, i64 step, i64 first) {
    F32s products[FEW - 1][LANES];
    const auto weight = [&](i64 n) { return (const T*)l.w + std::min(first + n, l.outputs - 1) * l.depth; };
    for (int n = 0; l.rows == 1 && n < LANES; ++n) products[0][n] = product_of_one(weight(n), x, l.depth);
    for (int n = 0; l.rows > 1 && n < LANES; n += OUTPUTS) {
        const T* const w[OUTPUTS] = {weight(n), weight(n + 1)};
        i64 row = 0;
        const auto some = [&]<int ROWS_>() PROPOLIS_INLINED {
            for (; row + ROWS_ <= l.rows; row += ROWS_) {
                F32s own[ROWS_][OUTPUTS];
                products_of_some(w, x + row * step, step, l.depth, row == 0, own);
                for (int r = 0; r < ROWS_; ++r) {
                    for (int i = 0; i < OUTPUTS; ++i) products[row + r][n + i] = own[r][i];
                }
            }
        };
        some.template operator()<ABREAST>();
        if constexpr (ABREAST > 1) some.template operator()<1>();
    }
    const i64 left_over = l.outputs - first;
    for (i64 row = 0; row < l.rows; ++row) {
        F32s y = sum_each(products[row]);
        if (l.bias) y = y + load_some((const T*)l.bias + first, left_over);
        store_some((T*)l.out + row * l.outputs + first, y, left_over);
    }
}

template <class T>
void linear_of_few(const Linear& l) {
    const i64 step = parts(l.depth, LANES) * LANES;
    thread_local Room<> room;
    f32* x = room.of(l.rows * step);  // in f32, what is beyond a row 0
    for (i64 r = 0; r < l.rows; ++r) {
        for (i64 d = 0; d < l.depth; d += LANES) {
            store(x + r * step + d, load_some((const T*)l.x + r * l.depth + d, l.depth - d));
        }
    }
    parallel(l.threads, parts(l.outputs, GROUPS * LANES), [&](i64 task) {
        const i64 end = std::min(l.outputs, (task + 1) * GROUPS * LANES);
        for (i64 first = task * GROUPS * LANES; first < end; first += LANES) outputs_of_few<T>(l, x, step, first);
    });
}

}  // namespace

void linear(const Linear& l) {
    if (l.rows * l.outputs == 0) return;
    with_type(l.kind, [&](auto type) {
        using T = decltype(type);
        l.rows < FEW ? linear_of_few<T>(l) : linear_of<T>(l);
    });
}

}  // namespace propolis
