// Products of tokens with the weights of the experts that each chose: one for each expert, of all its rows.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

// Rows of the result by the expert they chose, each expert's in their order; where those of each end.
struct Order {
    std::vector<i64> rows, ends;
    explicit Order(const Mixture& m) : rows(m.tokens * m.each), ends(m.experts) {
        const i64 count = (i64)rows.size();
        for (i64 i = 0; i < count; ++i) ++ends[m.chosen[i]];
        i64 before = 0;
        for (i64& end : ends) before += end, end = before - end;
        for (i64 i = 0; i < count; ++i) rows[ends[m.chosen[i]]++] = i;
    }
};

// An expert's rows side by side, of what is given and what comes out: one row lies where it is.
struct Side {
    const u8* x;
    u8* out;
    i64 first, count;  // in the order
};

}  // namespace

void mix(const Mixture& m, bool exact) {
    if (m.tokens * m.each * m.n == 0) return;
    const Order order(m);
    const i64 size = size_of(m.kind), x_bytes = m.k * size, out_bytes = m.n * size;
    const auto given = [&](i64 row) { return (const u8*)m.x + (m.shared ? row / m.each : row) * x_bytes; };
    const auto made = [&](i64 row) { return (u8*)m.out + row * out_bytes; };
    i64 gathered = 0;  // rows of experts that have several
    for (i64 e = 0, first = 0; e < m.experts; first = order.ends[e++]) {
        gathered += order.ends[e] - first > 1 ? order.ends[e] - first : 0;
    }
    thread_local Room<u8> x_room, out_room;
    u8 *x = x_room.of(gathered * x_bytes), *out = out_room.of(gathered * out_bytes);
    std::vector<Product> products;
    std::vector<Side> sides;
    std::vector<const u8*> weights;
    for (i64 e = 0, first = 0; e < m.experts; first = order.ends[e++]) {
        const i64 count = order.ends[e] - first;
        if (count == 0) continue;
        const i64 row = order.rows[first];
        const Side side = count == 1 ? Side{given(row), made(row), first, 1} : Side{x, out, first, count};
        if (count > 1) x += count * x_bytes, out += count * out_bytes;
        sides.push_back(side);
        weights.push_back((const u8*)m.w + e * m.bytes);
    }
    const auto each_row = [&](auto&& move) {
        parallel(m.tokens * m.each * (x_bytes + out_bytes) < (1 << 18) ? 1 : m.threads, (i64)sides.size(), [&](i64 i) {
            const Side& side = sides[i];
            for (i64 r = 0; side.count > 1 && r < side.count; ++r) move(side, r, order.rows[side.first + r]);
        });
    };
    if (x_bytes) {
        each_row([&](const Side& side, i64 r, i64 row) {
            std::memcpy((u8*)side.x + r * x_bytes, given(row), x_bytes);
        });
    }
    for (size_t i = 0; i < sides.size(); ++i) {
        const Side& side = sides[i];
        if (m.format) {
            products.push_back({m.format, weights[i], side.out, side.x, m.kind, side.count, m.n, m.k, m.threads});
        } else {
            linear({m.kind, side.out, side.x, weights[i], nullptr, nullptr, side.count, m.n, m.k, m.threads});
        }
    }
    if (m.format) multiply(products, exact);
    each_row([&](const Side& side, i64 r, i64 row) { std::memcpy(made(row), side.out + r * out_bytes, out_bytes); });
}

}  // namespace propolis
