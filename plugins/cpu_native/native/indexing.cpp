// Rows and elements by index, and numbers as those of another type.
#include <algorithm>

#include "kernels.h"
#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 WORTH = 1 << 14;  // elements that are worth a thread

}  // namespace

i64 Ids::outside(i64 size) const {
    for (i64 i = 0; i < count; ++i) {
        if (!masked(i) && ((*this)[i] < 0 || (*this)[i] >= size)) return i;
    }
    return -1;
}

void embedding(Kind kind, void* out, const Ids& ids, const void* table, const Format* format, bool tiled, Kind table_kind,
               i64 width, int threads) {
    const i64 row_bytes = format ? width / format->block * format->source : width * size_of(table_kind);
    const int worth = ids.count * width < WORTH ? 1 : threads;
    parallel(worth, (ids.count + LANES - 1) / LANES, [&](i64 task) {
        const i64 first = task * LANES, some = std::min<i64>(LANES, ids.count - first);
        const u8* rows[LANES];
        thread_local Room<u8> untiled;
        u8* const blocks = tiled ? untiled.of(some * row_bytes) : nullptr;
        for (i64 i = 0; i < some; ++i) {
            const i64 row = ids.masked(first + i) ? -1 : ids[first + i];
            rows[i] = row < 0 ? nullptr : tiled ? blocks + i * row_bytes : (const u8*)table + row * row_bytes;
            if (tiled && row >= 0) {
                const i64 count = width / format->block;
                format->get(blocks + i * row_bytes, (const u8*)table + row / LANES * count * format->tile,
                            (int)(row % LANES), count);
            }
        }
        thread_local Room<f32> room;
        f32* values = nullptr;
        if (format) {
            values = kind == Kind::F32 ? (f32*)out + first * width : room.of(some * width);
            format->decode(values, rows, (int)some, width);
        }
        with_type(kind, [&](auto type) {
            typedef decltype(type) T;
            T* to = (T*)out + first * width;
            for (i64 i = 0; i < some; ++i, to += width) {
                if (!rows[i]) {
                    std::memset(to, 0, width * sizeof(T));
                } else if (format) {
                    if (kind == Kind::F32) continue;
                    for (i64 e = 0; e < width; ++e) to[e] = narrow<T>(values[i * width + e]);
                } else if (kind == table_kind) {
                    std::memcpy(to, rows[i], row_bytes);
                } else {
                    with_type(table_kind, [&](auto own) {
                        const auto* from = (const decltype(own)*)rows[i];
                        for (i64 e = 0; e < width; ++e) to[e] = narrow<T>(wide(from[e]));
                    });
                }
            }
        });
    });
}

void gather_rows(int size, void* out, const Stepped& x, const Ids& ids, i64 each) {
    for (i64 i = 0; i < ids.count; ++i) {
        u8* to = (u8*)out + i * size;
        if (ids.masked(i)) {
            std::memset(to, 0, size);
        } else {
            std::memcpy(to, (const u8*)x.at + (i / each * x.step + ids[i]) * size, size);
        }
    }
}

void cast(Kind kind, void* out, const void* x, Number from, i64 count, int threads) {
    constexpr i64 PART = 1 << 13;
    parallel(count < WORTH ? 1 : threads, (count + PART - 1) / PART, [&](i64 task) {
        const i64 first = task * PART, end = std::min(count, first + PART);
        with_type(kind, [&](auto type) {
            typedef decltype(type) T;
            const auto each = [&](const auto* source) {
                for (i64 i = first; i < end; ++i) ((T*)out)[i] = narrow<T>(wide(source[i]));
            };
            switch (from) {
                case Number::F32: return each((const f32*)x);
                case Number::F16: return each((const f16*)x);
                case Number::BF16: return each((const bf16*)x);
                // Of integers to f32 alone: rounded twice they would be others.
                case Number::I32:
                    for (i64 i = first; i < end; ++i) ((f32*)out)[i] = (f32)((const i32*)x)[i];
                    return;
                case Number::I64:
                    for (i64 i = first; i < end; ++i) ((f32*)out)[i] = (f32)((const i64*)x)[i];
                    return;
            }
        });
    });
}

}  // namespace propolis
