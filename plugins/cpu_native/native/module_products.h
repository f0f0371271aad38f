// The functions of the module that multiply with weights, and that rearrange these.
#pragma once

#include <type_traits>

#include "arguments.h"

namespace propolis {
namespace {

#define FUNCTION(name) PyObject* name(PyObject*, PyObject* const* args, Py_ssize_t count)

enum class Way : int { EXACT, TILES, MATRIX };

// -- weights ---------------------------------------------------------------------------------------

const Format* format(Arguments& a) {
    PyObject* object = a.next();
    if (!object) return nullptr;
    const char* name = PyUnicode_AsUTF8AndSize(object, nullptr);
    const Format* found = name ? format_named(name) : nullptr;
    if (!found) a.fail("no such block format");
    return found;
}

// tile_bytes(format): of sixteen blocks, or 0 where it is unknown
FUNCTION(tile_bytes) {
    if (count != 1) return PyErr_SetString(PyExc_TypeError, "tile_bytes(format)"), nullptr;
    const char* name = PyUnicode_AsUTF8AndSize(args[0], nullptr);
    if (!name) return nullptr;
    const Format* found = format_named(name);
    return PyLong_FromLongLong(found ? found->tile : 0);
}

// repack(tiles, blocks, format, n, k, threads), and unpack(blocks, tiles, ...)
template <bool back>
FUNCTION(rearrange) {
    Arguments a(args, count);
    i64 to_bytes = 0, from_bytes = 0;
    u8* to = (u8*)a.flat(true, &to_bytes);
    const u8* from = (const u8*)a.flat(false, &from_bytes);
    const Format* f = format(a);
    const i64 n = a.whole(), k = a.whole(), threads = a.whole();
    if (!a.ok()) return nullptr;
    const i64 tiles = (n + 15) / 16 * (k / f->block) * f->tile, blocks = n * (k / f->block) * f->source;
    if (k % f->block || to_bytes != (back ? blocks : tiles) || from_bytes != (back ? tiles : blocks)) {
        return a.fail("sizes do not fit"), nullptr;
    }
    return a.call([=] {
        back ? unpack(*f, to, from, n, k, (int)threads) : repack(*f, to, from, n, k, (int)threads);
        return Error();
    });
}

// qmatmul(out, x, tiles, format, kind, m, n, k, threads, way, gated)
FUNCTION(qmatmul) {
    Arguments a(args, count);
    Product p{};
    p.out = a.flat(true);
    p.x = a.flat();
    i64 nbytes = 0;
    p.tiles = (const u8*)a.flat(false, &nbytes);
    p.format = format(a);
    p.kind = a.kind();
    p.m = a.whole();
    p.n = a.whole();
    p.k = a.whole();
    p.threads = (int)a.whole();
    const Way way = (Way)a.whole();
    p.gated = a.truth();
    if (!a.ok()) return nullptr;
    if (p.gated && (way != Way::MATRIX || p.kind != Kind::F32 || p.n % 32)) return a.fail("such products are not gated"), nullptr;
    if (p.k % p.format->block || nbytes != (p.n + 15) / 16 * (p.k / p.format->block) * p.format->tile) {
        return a.fail("the weight's size does not fit"), nullptr;
    }
    return a.call([=] {
        if (p.m * p.n == 0) return Error();
        if (way == Way::MATRIX) multiply_tiled(p);
        else multiply(p, way == Way::EXACT);
        return Error();
    });
}

// -- linear layers ---------------------------------------------------------------------------------

FUNCTION(matrix_instructions_) {
    if (count) return PyErr_SetString(PyExc_TypeError, "matrix_instructions()"), nullptr;
    (void)args;
    return PyUnicode_FromString(matrix_instructions());
}

// packed_bytes(outputs, depth)
FUNCTION(packed_bytes_) {
    Arguments a(args, count);
    const i64 outputs = a.whole(), depth = a.whole();
    return a.ok() ? PyLong_FromLongLong(packed_bytes(outputs, depth)) : nullptr;
}

// packed_filter_bytes(outputs, channels, taps)
FUNCTION(packed_filter_bytes_) {
    Arguments a(args, count);
    const i64 outputs = a.whole(), channels = a.whole(), taps = a.whole();
    return a.ok() ? PyLong_FromLongLong(packed_filter_bytes(outputs, channels, taps)) : nullptr;
}

// pack_weight(tiles, w, outputs, depth, threads), unpack_weight(w, tiles, outputs, depth, threads); the same of filters,
// with how many taps before the threads.
template <auto move>
FUNCTION(move_weight) {
    constexpr bool filters = std::is_invocable_v<decltype(move), void*, const void*, i64, i64, i64, int>;
    Arguments a(args, count);
    void* to = a.flat(true);
    const void* from = a.flat();
    const i64 outputs = a.whole(), depth = a.whole(), taps = filters ? a.whole() : 1;
    const int threads = (int)a.whole();
    return a.call([=] {
        if constexpr (filters) move(to, from, outputs, depth, taps, threads);
        else move(to, from, outputs, depth, threads);
        return Error();
    });
}

// linear(out, x, w, tiles, bias, kind, rows, outputs, depth, threads, way)
FUNCTION(linear_) {
    Arguments a(args, count);
    Linear l{};
    i64 packed = 0;
    l.out = a.flat(true);
    l.x = a.flat();
    l.w = a.flat();
    l.tiles = a.flat(false, &packed);
    l.bias = a.flat();
    l.kind = a.kind();
    l.rows = a.whole();
    l.outputs = a.whole();
    l.depth = a.whole();
    l.threads = (int)a.whole();
    const Way way = (Way)a.whole();
    if (!a.ok()) return nullptr;
    if (l.tiles && packed != packed_bytes(l.outputs, l.depth)) return a.fail("the weight's size does not fit"), nullptr;
    return a.call([=] {
        way == Way::MATRIX ? linear_tiled(l) : linear(l);
        return Error();
    });
}

// -- mixtures of experts ---------------------------------------------------------------------------

// moe_qmatmul(out, x, tiles, format, experts, kind, tokens, each, shared, n, k, threads, way), and moe_linear(out, x, w,
// experts, ...)
template <bool blocks>
FUNCTION(mix_) {
    Arguments a(args, count);
    Mixture m{};
    i64 out_bytes = 0, x_bytes = 0, w_bytes = 0, chosen_bytes = 0;
    m.out = a.flat(true, &out_bytes);
    m.x = a.flat(false, &x_bytes);
    m.w = a.flat(false, &w_bytes);
    m.format = blocks ? format(a) : nullptr;
    m.chosen = (const i64*)a.flat(false, &chosen_bytes);
    m.kind = a.kind();
    m.tokens = a.whole();
    m.each = a.whole();
    m.shared = a.truth();
    m.experts = a.whole();
    m.n = a.whole();
    m.k = a.whole();
    m.threads = (int)a.whole();
    const Way way = (Way)a.whole();
    if (!a.ok()) return nullptr;
    const i64 size = size_of(m.kind), rows = m.tokens * m.each;
    m.bytes = blocks ? (m.n + 15) / 16 * (m.k / m.format->block) * m.format->tile : m.n * m.k * size;
    if (w_bytes != m.experts * m.bytes || (blocks && m.k % m.format->block) || out_bytes != rows * m.n * size ||
        x_bytes != (m.shared ? m.tokens : rows) * m.k * size || chosen_bytes != rows * (i64)sizeof(i64)) {
        return a.fail("sizes do not fit"), nullptr;
    }
    return a.call([=]() -> Error {
        for (i64 i = 0; i < m.tokens * m.each; ++i) {
            if (m.chosen[i] < 0 || m.chosen[i] >= m.experts) {
                return std::string(blocks ? "moe_qmatmul" : "moe_linear") + ": expert " + std::to_string(m.chosen[i]) +
                       outside_of("the weights", m.experts);
            }
        }
        mix(m, way == Way::EXACT);
        return {};
    });
}

}  // namespace
}  // namespace propolis
