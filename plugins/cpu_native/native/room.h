// Memory to work in.
#pragma once

#include <memory>
#include <new>

#include "simd.h"

namespace propolis {

// Memory that a thread keeps from call to call, from a multiple of a vector's bytes on.
template <class T = f32>
class Room {
public:
    T* of(i64 count) {
        if (count > count_) {
            at_.reset();
            count_ = 0;
            at_.reset((T*)::operator new(count * sizeof(T), std::align_val_t(64)));
            count_ = count;
        }
        return at_.get();
    }

private:
    struct Free {
        void operator()(T* at) { ::operator delete(at, std::align_val_t(64)); }
    };
    std::unique_ptr<T, Free> at_;
    i64 count_ = 0;
};

}  // namespace propolis
