// Ids of rows and elements, of any of the dtypes that Python numbers (KIND_U8 and its like).
#pragma once

#include "propolis_device.h"

// The index-th id; -1 for the largest of its dtype, which is masked.
PROPOLIS_FN i64 load_id(const void* ids, i32 kind, i64 index) {
    switch (kind) {
        case KIND_U8: {
            const u8 id = ((const u8*)ids)[index];
            return id == 0xff ? -1 : (i64)id;
        }
        case KIND_U32: {
            const u32 id = ((const u32*)ids)[index];
            return id == 0xffffffffu ? -1 : (i64)id;
        }
        case KIND_I16: {
            const i16 id = ((const i16*)ids)[index];
            return id == 0x7fff ? -1 : (i64)id;
        }
        case KIND_I32: {
            const i32 id = ((const i32*)ids)[index];
            return id == 0x7fffffff ? -1 : (i64)id;
        }
        default: {  // KIND_I64
            const i64 id = ((const i64*)ids)[index];
            return id == 0x7fffffffffffffffll ? -1 : id;
        }
    }
}

PROPOLIS_FN bool inside(i64 id, i64 size) { return id >= 0 && id < size; }
