// Elements whose dtype is told at the launch, by number (KIND_U8 and its like), where a kernel for
// each dtype would be too many: all threads take the same branch.
#pragma once

#include "propolis_convert.h"

PROPOLIS_FN u64 load_bits(const void* x, i32 kind, i64 index) {
    switch (kind) {
        case KIND_U8:
        case KIND_I8:
        case KIND_F8E4M3:
        case KIND_F8E5M2:
            return ((const u8*)x)[index];
        case KIND_I16:
        case KIND_F16:
        case KIND_BF16:
            return ((const u16*)x)[index];
        case KIND_U32:
        case KIND_I32:
        case KIND_F32:
            return ((const u32*)x)[index];
        default:  // KIND_I64, KIND_F64
            return ((const u64*)x)[index];
    }
}

PROPOLIS_FN void copy_element(void* to, i64 at, const void* from, i64 index, i32 kind) {
    const u64 bits = load_bits(from, kind, index);
    switch (kind) {
        case KIND_U8:
        case KIND_I8:
        case KIND_F8E4M3:
        case KIND_F8E5M2:
            ((u8*)to)[at] = (u8)bits;
            break;
        case KIND_I16:
        case KIND_F16:
        case KIND_BF16:
            ((u16*)to)[at] = (u16)bits;
            break;
        case KIND_U32:
        case KIND_I32:
        case KIND_F32:
            ((u32*)to)[at] = (u32)bits;
            break;
        default:
            ((u64*)to)[at] = bits;
    }
}

// A float, in f32.
PROPOLIS_FN f32 load_f32(const void* x, i32 kind, i64 index) {
    switch (kind) {
        case KIND_F8E4M3:
            return wide(((const f8e4m3*)x)[index]);
        case KIND_F8E5M2:
            return wide(((const f8e5m2*)x)[index]);
        case KIND_BF16:
            return wide(((const bf16*)x)[index]);
        case KIND_F16:
            return wide(((const f16*)x)[index]);
        case KIND_F32:
            return ((const f32*)x)[index];
        default:
            return (f32)((const f64*)x)[index];
    }
}

// A result that was computed in f32, as a float of at most that.
PROPOLIS_FN void store_f32(void* to, i32 kind, i64 index, f32 value) {
    switch (kind) {
        case KIND_F8E4M3:
            ((f8e4m3*)to)[index] = narrow<f8e4m3>(value);
            break;
        case KIND_F8E5M2:
            ((f8e5m2*)to)[index] = narrow<f8e5m2>(value);
            break;
        case KIND_BF16:
            ((bf16*)to)[index] = narrow<bf16>(value);
            break;
        case KIND_F16:
            ((f16*)to)[index] = narrow<f16>(value);
            break;
        default:
            ((f32*)to)[index] = value;
    }
}
