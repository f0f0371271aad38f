// The arguments of a call from Python, and calls that are kept instead of run.
#pragma once

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <functional>
#include <new>
#include <string>
#include <vector>

#include "kernels.h"

namespace propolis {
namespace {

// Buffers that a call holds; released with the interpreter's lock held.
class Held {
public:
    Held() = default;
    Held(Held&& other) noexcept : views_(std::move(other.views_)) { other.views_.clear(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
        for (Py_buffer* view : views_) {
            PyBuffer_Release(view);
            delete view;
        }
    }
    Py_buffer* take(PyObject* object, bool writable) {
        Py_buffer* view = new Py_buffer;
        if (PyObject_GetBuffer(object, view, writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO) != 0) {
            delete view;
            return nullptr;
        }
        views_.push_back(view);
        return view;
    }

private:
    std::vector<Py_buffer*> views_;
};

// What went wrong in a call that runs without the interpreter; empty where nothing did.
typedef std::string Error;

Error outcome(const std::function<Error()>& run) {
    try {
        return run();
    } catch (const std::bad_alloc&) {
        return "there is too little memory to work in";
    }
}

struct Command {
    std::function<Error()> run;
    Held held;
};
typedef std::vector<Command> Plan;

thread_local Plan* recording = nullptr;
PyObject* op_error = nullptr;

PyObject* finish(const Error& error) {
    if (error.empty()) Py_RETURN_NONE;
    PyErr_SetString(op_error ? op_error : PyExc_ValueError, error.c_str());
    return nullptr;
}

// The arguments of a call, in order; after a failure `ok()` is false and a Python error is set.
class Arguments {
public:
    Arguments(PyObject* const* args, Py_ssize_t count) : args_(args), count_(count) {}

    bool ok() const { return ok_; }

    View view(bool writable = false) {
        View v{};
        for (i64& size : v.shape) size = 1;
        Py_buffer* b = buffer(writable);
        if (!b) return v;
        if (b->ndim > 4) return fail("an array has more than 4 dimensions"), v;
        v.at = b->buf;
        for (int i = 0; i < b->ndim; ++i) {
            v.shape[i] = b->shape[i];
            if (b->itemsize && b->strides[i] % b->itemsize && b->shape[i] > 1) {
                return fail("a stride is no whole number of elements"), v;
            }
            v.strides[i] = b->itemsize ? b->strides[i] / b->itemsize : 0;
        }
        return v;
    }
    // Of an array that lies in a row; null for None.
    void* flat(bool writable = false, i64* nbytes = nullptr) {
        if (at_ < count_ && args_[at_] == Py_None) {
            ++at_;
            return nullptr;
        }
        Py_buffer* b = buffer(writable);
        if (!b) return nullptr;
        if (!PyBuffer_IsContiguous(b, 'C')) return fail("an array is not contiguous"), nullptr;
        if (nbytes) *nbytes = b->len;
        return b->buf;
    }
    // Of an array and its step.
    Stepped rows() {
        Py_buffer* b = buffer(false);
        const i64 step = whole();
        return {b ? b->buf : nullptr, step};
    }
    bool is_none() const { return at_ < count_ && args_[at_] == Py_None; }
    bool is_number() const { return at_ < count_ && PyLong_Check(args_[at_]); }
    void skip() { ++at_; }
    i64 whole() {
        PyObject* object = next();
        if (!object) return 0;
        const long long value = PyLong_AsLongLong(object);
        if (value == -1 && PyErr_Occurred()) ok_ = false;
        return value;
    }
    double number() {
        PyObject* object = next();
        if (!object) return 0;
        const double value = PyFloat_AsDouble(object);
        if (value == -1 && PyErr_Occurred()) ok_ = false;
        return value;
    }
    bool truth() {
        PyObject* object = next();
        const int value = object ? PyObject_IsTrue(object) : 0;
        if (value < 0) ok_ = false;
        return value > 0;
    }
    Kind kind() { return (Kind)whole(); }
    PyObject* next() {
        if (!ok_) return nullptr;
        if (at_ >= count_) return fail("too few arguments"), nullptr;
        return args_[at_++];
    }
    void fail(const char* message) {
        if (ok_) PyErr_SetString(PyExc_TypeError, message);
        ok_ = false;
    }

    // Run a call, or keep it for a plan.
    PyObject* call(std::function<Error()> run) {
        if (!ok_) return nullptr;
        if (recording) {
            recording->push_back({std::move(run), std::move(held_)});
            Py_RETURN_NONE;
        }
        Error error;
        Py_BEGIN_ALLOW_THREADS;
        error = outcome(run);
        Py_END_ALLOW_THREADS;
        return finish(error);
    }

private:
    Py_buffer* buffer(bool writable) {
        PyObject* object = next();
        if (!object) return nullptr;
        Py_buffer* b = held_.take(object, writable);
        if (!b) ok_ = false;
        return b;
    }

    PyObject* const* args_;
    Py_ssize_t count_, at_ = 0;
    bool ok_ = true;
    Held held_;
};

// Where an index is not: in the words of the reference.
inline std::string outside_of(const std::string& where, i64 size) {
    const std::string range = size ? std::to_string(size) + " rows (0 to " + std::to_string(size - 1) + ")" : "no rows";
    return " is outside " + where + ", which has " + range;
}

}  // namespace
}  // namespace propolis
