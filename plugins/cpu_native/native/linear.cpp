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

constexpr i64 FEW = 16;     // fewer rows take weights as they lie: to read them is all the work
constexpr int CHAINS = 4;   // sums of a product that do not wait for each other
constexpr i64 GROUPS = 2;   // of LANES outputs, that are a task

// out[row, first + i] for LANES outputs and ROWS_ rows, each of which is summed as if it were alone.  Weights are
// read from one end to the other: what hardware foresees.
template <class T, int ROWS_>
void dot_products(const Linear& l, const f32* x, i64 step, i64 row, i64 first) {
    F32s sums[ROWS_][LANES];
    for (int n = 0; n < LANES; ++n) {
        const T* from = (const T*)l.w + std::min(first + n, l.outputs - 1) * l.depth;
        F32s some[ROWS_][CHAINS];
        for (int r = 0; r < ROWS_; ++r) {
            for (int c = 0; c < CHAINS; ++c) some[r][c] = splat(0.0f);
        }
        const auto add = [&](i64 d, int chain, const F32s& w) {
            for (int r = 0; r < ROWS_; ++r) {
                some[r][chain] = fma(w, load(x + (row + r) * step + d), some[r][chain]);
            }
        };
        i64 d = 0;
        for (; d + CHAINS * LANES <= l.depth; d += CHAINS * LANES) {
            for (int c = 0; c < CHAINS; ++c) add(d + c * LANES, c, load_wide(from + d + c * LANES));
        }
        for (; d < l.depth; d += LANES) add(d, 0, load_some(from + d, l.depth - d));
        for (int r = 0; r < ROWS_; ++r) sums[r][n] = (some[r][0] + some[r][1]) + (some[r][2] + some[r][3]);
    }
    const i64 left_over = l.outputs - first;
    for (int r = 0; r < ROWS_; ++r) {
        F32s y = sum_each(sums[r]);
        if (l.bias) y = y + load_some((const T*)l.bias + first, left_over);
        store_some((T*)l.out + (row + r) * l.outputs + first, y, left_over);
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
        for (i64 first = task * GROUPS * LANES; first < end; first += LANES) {
            i64 row = 0;
            for (; row + 4 <= l.rows; row += 4) dot_products<T, 4>(l, x, step, row, first);
            if (row + 2 <= l.rows) dot_products<T, 2>(l, x, step, row, first), row += 2;
            if (row < l.rows) dot_products<T, 1>(l, x, step, row, first);
        }
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
