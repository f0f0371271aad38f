// The kernels as a Python module.  Arrays come as buffers; of dtypes that buffers cannot say, their number.
// Between `record` and its end calls are kept instead of run, and a plan runs them again without Python.
#include "arguments.h"
#include "module_products.h"

#ifndef PROPOLIS_MODULE
#error "PROPOLIS_MODULE names the module"
#endif
#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

namespace propolis {
namespace {

// -- rows ------------------------------------------------------------------------------------------

// rms_norm(out, total, x, residual, weight, kind, rows, width, eps, threads)
FUNCTION(rms_norm_) {
    Arguments a(args, count);
    void *out = a.flat(true), *total = a.flat(true);
    const void *x = a.flat(), *residual = a.flat(), *weight = a.flat();
    const Kind kind = a.kind();
    const i64 rows = a.whole(), width = a.whole();
    const f32 eps = (f32)a.number();
    const int threads = (int)a.whole();
    return a.call([=] {
        rms_norm(kind, out, total, x, residual, weight, rows, width, eps, threads);
        return Error();
    });
}

// layer_norm(out, x, weight, bias, kind, rows, width, eps, threads)
FUNCTION(layer_norm_) {
    Arguments a(args, count);
    void* out = a.flat(true);
    const void *x = a.flat(), *weight = a.flat(), *bias = a.flat();
    const Kind kind = a.kind();
    const i64 rows = a.whole(), width = a.whole();
    const f32 eps = (f32)a.number();
    const int threads = (int)a.whole();
    return a.call([=] {
        layer_norm(kind, out, x, weight, bias, rows, width, eps, threads);
        return Error();
    });
}

// pairwise(op, out, a, its step, b, its step, kind, rows, width, threads)
FUNCTION(pairwise_) {
    Arguments a(args, count);
    const Pairwise op = (Pairwise)a.whole();
    void* out = a.flat(true);
    const Stepped x = a.rows(), y = a.rows();
    const Kind kind = a.kind();
    const i64 n = a.whole(), width = a.whole();
    const int threads = (int)a.whole();
    return a.call([=] {
        pairwise(op, kind, out, x, y, n, width, threads);
        return Error();
    });
}

// largest_of_rows(out, places, x, its step, kind, rows, width, threads)
FUNCTION(largest_of_rows_) {
    Arguments a(args, count);
    void* out = a.flat(true);
    const bool places = a.truth();
    const Stepped x = a.rows();
    const Kind kind = a.kind();
    const i64 rows = a.whole(), width = a.whole();
    const int threads = (int)a.whole();
    return a.call([=] {
        largest_of_rows(kind, out, places, x, rows, width, threads);
        return Error();
    });
}

// first_of_rows(values, places, x, its step, kind, rows, width, k, threads)
FUNCTION(first_of_rows_) {
    Arguments a(args, count);
    void *values = a.flat(true), *places = a.flat(true);
    const Stepped x = a.rows();
    const Kind kind = a.kind();
    const i64 rows = a.whole(), width = a.whole(), k = a.whole();
    const int threads = (int)a.whole();
    return a.call([=] {
        first_of_rows(kind, values, places, x, rows, width, k, threads);
        return Error();
    });
}

// draw(out, x, its step, keys, temperature, top_k, top_p, min_p, kind, rows, width, k, threads)
FUNCTION(draw_) {
    Arguments a(args, count);
    i64* out = (i64*)a.flat(true);
    const Stepped x = a.rows();
    Draws by{};
    by.keys = (const i64*)a.flat();
    by.temperature = (const f32*)a.flat();
    by.top_k = (const i32*)a.flat();
    by.top_p = (const f32*)a.flat();
    by.min_p = (const f32*)a.flat();
    const Kind kind = a.kind();
    const i64 rows = a.whole(), width = a.whole(), k = a.whole();
    const int threads = (int)a.whole();
    return a.call([=] {
        draw(kind, out, x, by, rows, width, k, threads);
        return Error();
    });
}

// softmax(out, x, its step, kind, rows, width, threads)
FUNCTION(softmax_) {
    Arguments a(args, count);
    void* out = a.flat(true);
    const Stepped x = a.rows();
    const Kind kind = a.kind();
    const i64 rows = a.whole(), width = a.whole();
    const int threads = (int)a.whole();
    return a.call([=] {
        softmax(kind, out, x, rows, width, threads);
        return Error();
    });
}

Error is_outside(const char* op, const char* where, i64 limit, i64 found) {
    return std::string(op) + ": position " + std::to_string(found) + outside_of(where, limit);
}

// rope(out, x, positions, wide positions, cos, sin, interleaved, kind, threads)
FUNCTION(rope_) {
    Arguments a(args, count);
    const View out = a.view(true), x = a.view(), positions = a.view();
    const bool wide_positions = a.truth();
    const View cos = a.view(), sin = a.view();
    const bool interleaved = a.truth();
    const Kind kind = a.kind();
    const int threads = (int)a.whole();
    return a.call([=] {
        i64 found;
        const i64 rows = cos.shape[0];
        if (outside(positions, wide_positions, rows, &found) >= 0) {
            return is_outside("rope", "the tables", rows, found);
        }
        rope(kind, out, x, positions, wide_positions, cos, sin, interleaved, threads);
        return Error();
    });
}

// rope_kv_append(cache, x, slots, positions, cos, sin, interleaved, kind of x, kind, threads)
FUNCTION(rope_kv_append_) {
    Arguments a(args, count);
    const View cache = a.view(true), x = a.view(), slots = a.view(), positions = a.view(), cos = a.view(), sin = a.view();
    const bool interleaved = a.truth();
    const Kind given = a.kind(), kind = a.kind();
    const int threads = (int)a.whole();
    return a.call([=]() -> Error {
        i64 found;
        if (outside(positions, false, cos.shape[0], &found) >= 0) {
            return is_outside("rope_kv_append", "the tables", cos.shape[0], found);
        }
        if (outside(slots, false, cache.shape[1], &found) >= 0) {
            return is_outside("rope_kv_append", "the cache", cache.shape[1], found);
        }
        rope_kv_append(given, kind, cache, x, slots, positions, cos, sin, interleaved, threads);
        return {};
    });
}

// kv_append(cache, x, positions, wide positions, bytes of an element)
FUNCTION(kv_append_) {
    Arguments a(args, count);
    const View cache = a.view(true), x = a.view(), positions = a.view();
    const bool wide_positions = a.truth();
    const int size = (int)a.whole();
    return a.call([=] {
        i64 found;
        if (outside(positions, wide_positions, cache.shape[1], &found) >= 0) {
            return is_outside("kv_append", "the cache", cache.shape[1], found);
        }
        kv_append(size, cache, x, positions, wide_positions);
        return Error();
    });
}

// -- by index --------------------------------------------------------------------------------------

Ids ids_of(Arguments& a) {
    i64 nbytes = 0;
    const void* at = a.flat(false, &nbytes);
    const bool wide = a.truth();
    return {at, wide, nbytes / (wide ? 8 : 4)};
}

Error not_there(const char* op, const char* where, const Ids& ids, i64 which, i64 size) {
    return std::string(op) + ": id " + std::to_string(ids[which]) + outside_of(where, size);
}

// embedding(out, ids, wide ids, table, its format or kind, rows, width, kind, threads, repacked)
FUNCTION(embedding_) {
    Arguments a(args, count);
    i64 out_bytes = 0, table_bytes = 0;
    void* out = a.flat(true, &out_bytes);
    const Ids ids = ids_of(a);
    const void* table = a.flat(false, &table_bytes);
    const Format* blocks = a.is_number() ? nullptr : format(a);
    const Kind own = blocks || !a.ok() ? Kind::F32 : a.kind();
    const i64 rows = a.whole(), width = a.whole();
    const Kind kind = a.kind();
    const int threads = (int)a.whole();
    const bool tiled = a.whole() && blocks;
    if (!a.ok()) return nullptr;
    const i64 row_bytes = blocks ? width / blocks->block * blocks->source : width * size_of(own);
    const i64 whole = tiled ? (rows + LANES - 1) / LANES * (width / blocks->block) * blocks->tile : rows * row_bytes;
    if (out_bytes != ids.count * width * size_of(kind) || table_bytes != whole) {
        return a.fail("sizes do not fit"), nullptr;
    }
    return a.call([=]() -> Error {
        const i64 which = ids.outside(rows);
        if (which >= 0) return not_there("embedding", "the table", ids, which, rows);
        embedding(kind, out, ids, table, blocks, tiled, own, width, threads);
        return {};
    });
}

// gather_rows(out, x, its step, ids, wide ids, of each row, its width, bytes of an element)
FUNCTION(gather_rows_) {
    Arguments a(args, count);
    i64 out_bytes = 0;
    void* out = a.flat(true, &out_bytes);
    const Stepped x = a.rows();
    const Ids ids = ids_of(a);
    const i64 each = a.whole(), width = a.whole();
    const int size = (int)a.whole();
    if (!a.ok()) return nullptr;
    if (out_bytes != ids.count * size) return a.fail("sizes do not fit"), nullptr;
    return a.call([=]() -> Error {
        const i64 which = ids.outside(width);
        if (which >= 0) return not_there("gather", "the dimension", ids, which, width);
        gather_rows(size, out, x, ids, each);
        return {};
    });
}

// cast(out, x, number, elements, kind, threads)
FUNCTION(cast_) {
    Arguments a(args, count);
    i64 out_bytes = 0, x_bytes = 0;
    void* out = a.flat(true, &out_bytes);
    const void* x = a.flat(false, &x_bytes);
    const Number number = (Number)a.whole();
    const i64 elements = a.whole();
    const Kind kind = a.kind();
    const int threads = (int)a.whole();
    if (!a.ok()) return nullptr;
    constexpr i64 SIZES[] = {4, 2, 2, 4, 8};
    if (out_bytes != elements * size_of(kind) || x_bytes != elements * SIZES[(int)number]) {
        return a.fail("sizes do not fit"), nullptr;
    }
    return a.call([=] {
        cast(kind, out, x, number, elements, threads);
        return Error();
    });
}

// -- attention -------------------------------------------------------------------------------------

// attention(out, lse, q, k, v, kv_len, q_start, table, alibi, kind, kept, scale, softcap, left, right, threads, way)
FUNCTION(attention_) {
    Arguments a(args, count);
    Attention t{};
    t.out = a.view(true);
    t.lse = a.flat(true);
    t.q = a.view();
    t.k = a.view();
    t.v = a.view();
    t.kv_len = (const i32*)a.flat();
    i64 starts = 0;
    t.q_start = (const i32*)a.flat(false, &starts);
    const View table = a.is_none() ? View{} : a.view();
    if (!table.at) a.skip();
    t.table = (const i32*)table.at;
    t.blocks = table.at ? table.shape[1] : 0;
    t.alibi = (const f32*)a.flat();
    t.kind = a.kind();
    t.kept = (Kept)a.whole();
    t.scale = (f32)a.number();
    t.softcap = (f32)a.number();
    t.left = a.whole();
    t.right = a.whole();
    t.threads = (int)a.whole();
    const Way way = (Way)a.whole();
    t.batch = t.q_start ? starts / 4 - 1 : t.q.shape[0];
    if (table.at && table.shape[1] > 1 && (table.strides[1] != 1 || table.strides[0] != table.shape[1])) {
        a.fail("the block table is not contiguous");
    }
    return a.call([=]() -> Error {
        const i64 capacity = t.table ? t.blocks * t.k.shape[1] : t.k.shape[1];
        for (i64 s = 0; t.kv_len && s < t.batch; ++s) {
            if (t.kv_len[s] < 0 || t.kv_len[s] > capacity) {
                return "attention: kv_len " + std::to_string(t.kv_len[s]) + " is outside [0, " +
                       std::to_string(capacity) + "], the capacity of k and v";
            }
            if (!t.table) continue;
            const i64 used = (t.kv_len[s] + t.k.shape[1] - 1) / t.k.shape[1];
            for (i64 i = 0; i < used; ++i) {
                const i32 page = t.table[s * t.blocks + i];
                if (page < 0 || page >= t.k.shape[0]) {
                    return "attention: page " + std::to_string(page) + " is outside [0, " +
                           std::to_string(t.k.shape[0]) + "), the cache";
                }
            }
        }
        for (i64 s = 0; t.q_start && s <= t.batch; ++s) {
            const i64 least = s == 0 ? 0 : t.q_start[s - 1];
            const i64 most = s == 0 ? 0 : t.q.shape[1];
            if (t.q_start[s] < least || t.q_start[s] > most ||
                (s == t.batch && t.q_start[s] != t.q.shape[1])) {
                return "attention: q_start must ascend from 0 to " + std::to_string(t.q.shape[1]) +
                       ", the rows of q";
            }
        }
        way == Way::MATRIX ? attention_tiled(t) : attention(t);
        return Error();
    });
}

// -- images ----------------------------------------------------------------------------------------

// group_norm(out, x, weight, bias, kind, batch, channels, positions, groups, eps, with silu, threads)
FUNCTION(group_norm_) {
    Arguments a(args, count);
    void* out = a.flat(true);
    const void *x = a.flat(), *weight = a.flat(), *bias = a.flat();
    const Kind kind = a.kind();
    const i64 batch = a.whole(), channels = a.whole(), positions = a.whole(), groups = a.whole();
    const f32 eps = (f32)a.number();
    const bool with_silu = a.truth();
    const int threads = (int)a.whole();
    return a.call([=] {
        group_norm(kind, out, x, weight, bias, batch, channels, positions, groups, eps, with_silu, threads);
        return Error();
    });
}

// upsample_nearest2d(out, x, bytes of an element, threads): of (batch, channels, height, width)
FUNCTION(upsample_nearest2d) {
    Arguments a(args, count);
    const View out = a.view(true), x = a.view();
    const int size = (int)a.whole(), threads = (int)a.whole();
    return a.call([=] {
        upsample_nearest(size, out.at, x.at, x.shape[0] * x.shape[1], x.shape[2], x.shape[3], out.shape[2],
                         out.shape[3], threads);
        return Error();
    });
}

// -- convolutions ----------------------------------------------------------------------------------

// conv2d(out, x, w, tiles, bias, kind, outputs, kernel (2), strides (2), padding (2), dilation (2), threads, way)
FUNCTION(conv2d) {
    Arguments a(args, count);
    Convolution c{};
    const View out = a.view(true), x = a.view();
    i64 size = 0, packed = 0;
    c.out = out.at;
    c.x = x.at;
    c.w = a.flat(false, &size);
    c.tiles = a.flat(false, &packed);
    c.bias = a.flat();
    c.kind = a.kind();
    c.outputs = a.whole();
    for (i64* each : {c.kernel, c.stride, c.padding, c.dilation}) {
        each[0] = a.whole();
        each[1] = a.whole();
    }
    c.threads = (int)a.whole();
    const Way way = (Way)a.whole();
    c.batch = x.shape[0];
    c.channels = x.shape[1];
    c.height = x.shape[2];
    c.width = x.shape[3];
    c.out_height = out.shape[2];
    c.out_width = out.shape[3];
    if (!a.ok()) return nullptr;
    const i64 taps = c.kernel[0] * c.kernel[1];
    const bool fits = c.tiles ? packed == packed_filter_bytes(c.outputs, c.channels, taps)
                              : size == c.outputs * c.channels * taps * (i64)size_of(c.kind);
    if (!fits) return a.fail("the weight's size does not fit"), nullptr;
    return a.call([=] {
        if (way == Way::MATRIX) convolve_tiled(c);
        else convolve(c, way == Way::EXACT);
        return Error();
    });
}

// -- plans -----------------------------------------------------------------------------------------

void drop_plan(PyObject* capsule) { delete (Plan*)PyCapsule_GetPointer(capsule, "propolis.plan"); }

// record(calls): a plan of what they would do, or None where one did nothing that can be kept
FUNCTION(record) {
    if (count != 1) return PyErr_SetString(PyExc_TypeError, "record(calls)"), nullptr;
    PyObject* calls = PySequence_List(args[0]);
    if (!calls) return nullptr;
    Plan* outer = recording;
    Plan* plan = new Plan;
    bool whole = true, failed = false;
    recording = plan;
    for (Py_ssize_t i = 0; i < PyList_Size(calls) && whole && !failed; ++i) {
        const size_t before = plan->size();
        PyObject* result = PyObject_CallNoArgs(PyList_GetItem(calls, i));
        failed = result == nullptr;
        Py_XDECREF(result);
        whole = plan->size() > before;
    }
    recording = outer;
    Py_DECREF(calls);
    if (failed || !whole) {
        delete plan;
        if (failed) return nullptr;
        Py_RETURN_NONE;
    }
    PyObject* capsule = PyCapsule_New(plan, "propolis.plan", drop_plan);
    if (!capsule) delete plan;
    return capsule;
}

// replay(plan)
FUNCTION(replay) {
    if (count != 1) return PyErr_SetString(PyExc_TypeError, "replay(plan)"), nullptr;
    Plan* plan = (Plan*)PyCapsule_GetPointer(args[0], "propolis.plan");
    if (!plan) return nullptr;
    Error error;
    Py_BEGIN_ALLOW_THREADS;
    for (Command& command : *plan) {
        error = outcome(command.run);
        if (!error.empty()) break;
    }
    Py_END_ALLOW_THREADS;
    return finish(error);
}

// raise_as(class): of what arguments' values are refused with
FUNCTION(raise_as) {
    if (count != 1) return PyErr_SetString(PyExc_TypeError, "raise_as(class)"), nullptr;
    Py_INCREF(args[0]);
    Py_XDECREF(op_error);
    op_error = args[0];
    Py_RETURN_NONE;
}

#define METHOD(name, function) \
    { name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, nullptr }
PyMethodDef METHODS[] = {
    METHOD("tile_bytes", tile_bytes),
    METHOD("repack", rearrange<false>),
    METHOD("unpack", rearrange<true>),
    METHOD("qmatmul", qmatmul),
    METHOD("rms_norm", rms_norm_),
    METHOD("layer_norm", layer_norm_),
    METHOD("pairwise", pairwise_),
    METHOD("largest_of_rows", largest_of_rows_),
    METHOD("first_of_rows", first_of_rows_),
    METHOD("draw", draw_),
    METHOD("softmax", softmax_),
    METHOD("rope", rope_),
    METHOD("rope_kv_append", rope_kv_append_),
    METHOD("kv_append", kv_append_),
    METHOD("embedding", embedding_),
    METHOD("gather_rows", gather_rows_),
    METHOD("cast", cast_),
    METHOD("attention", attention_),
    METHOD("group_norm", group_norm_),
    METHOD("upsample_nearest2d", upsample_nearest2d),
    METHOD("conv2d", conv2d),
    METHOD("matrix_instructions", matrix_instructions_),
    METHOD("packed_bytes", packed_bytes_),
    METHOD("packed_filter_bytes", packed_filter_bytes_),
    METHOD("pack_weight", move_weight<pack_weight>),
    METHOD("unpack_weight", move_weight<unpack_weight>),
    METHOD("pack_filter", move_weight<pack_filter>),
    METHOD("unpack_filter", move_weight<unpack_filter>),
    METHOD("linear", linear_),
    METHOD("moe_linear", mix_<false>),
    METHOD("moe_qmatmul", mix_<true>),
    METHOD("record", record),
    METHOD("replay", replay),
    METHOD("raise_as", raise_as),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, STRING(PROPOLIS_MODULE), nullptr, -1, METHODS, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace propolis

extern "C" __attribute__((visibility("default"))) PyObject* CONCAT(PyInit_, PROPOLIS_MODULE)() {
    return PyModule_Create(&propolis::MODULE);
}
