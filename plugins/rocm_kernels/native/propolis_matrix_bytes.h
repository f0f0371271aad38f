// Matrix instructions on signed bytes, whose sums are whole: 16 rows of weights with up to COLUMNS rows of activations,
// 32 deep, on each of the bodies of propolis_matrix.h.
//
// Of 32 neighbours in depth a thread has QUARTERS of four: number q are 4 q to 4 q + 3 ("low"), and 16 + 4 q to 16 + 4 q
// + 3 ("high").  Which they are, and which rows, say
//
//     own_row(i)      of the weights, i below OWN_ROWS
//     own_column()    of the activations
//     quarter(i)      of both, i below QUARTERS
//
// and of a thread's sums, i below ByteSums::COUNT, of_row(i) which of its own rows that is, and of_column(i).
#pragma once

#include "propolis_matrix.h"

#if PROPOLIS_FRAGMENTS
#if defined(PROPOLIS_MMA)
constexpr int COLUMNS = 8, OWN_ROWS = 2, QUARTERS = 1;
#elif defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
constexpr int COLUMNS = 16, OWN_ROWS = 1, QUARTERS = 4;  // both halves of a warp have the same
#else
constexpr int COLUMNS = 16, OWN_ROWS = 1, QUARTERS = 4 * FRAGMENT / PROPOLIS_WARP;
#endif

PROPOLIS_FN int own_row(int i) {
#if defined(PROPOLIS_MMA)
    return lane_of_warp() / 4 + i * 8;
#else
    (void)i;
    return lane_of_warp() % FRAGMENT;
#endif
}
PROPOLIS_FN int own_column() {
#if defined(PROPOLIS_MMA)
    return lane_of_warp() / 4;
#else
    return lane_of_warp() % FRAGMENT;
#endif
}
PROPOLIS_FN int quarter(int i) {
#if defined(PROPOLIS_MMA)
    (void)i;
    return lane_of_warp() % 4;
#elif defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
    return i;
#else
    return lane_of_warp() / FRAGMENT * QUARTERS + i;
#endif
}

struct ByteQuarters {
    u32 low[QUARTERS], high[QUARTERS];
};

struct ByteSums {
    static constexpr int COUNT = FRAGMENT * COLUMNS / PROPOLIS_WARP;
    i32 at[COUNT];

    // Sums of up to 256 products that become a `number`: on NVIDIA, where conversions are slow, they are the last bits of
    // 1.5 * 2**23.
#if defined(PROPOLIS_MMA)
    static constexpr i32 NONE = 0x4b400000;
    PROPOLIS_METHOD f32 number(int i) const { return bits_as<f32>((u32)at[i]) - 12582912.0f; }
#else
    static constexpr i32 NONE = 0;
    PROPOLIS_METHOD f32 number(int i) const { return (f32)at[i]; }
#endif
    PROPOLIS_METHOD void begin(bool number) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] = number ? NONE : 0;
    }

    PROPOLIS_METHOD static int of_row(int i) {
#if defined(PROPOLIS_MMA)
        return i / 2;
#else
        (void)i;
        return 0;
#endif
    }
    // Those of i below OF_COLUMNS are all that a thread has; BESIDE of them lie side by side.
    static constexpr int OF_COLUMNS = COUNT / OWN_ROWS;
#if defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
    static constexpr int BESIDE = 1;
#else
    static constexpr int BESIDE = 2;
#endif
    PROPOLIS_METHOD static int of_column(int i) {
#if defined(PROPOLIS_MMA)
        return lane_of_warp() % 4 * 2 + i % 2;
#elif defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
        return i * 2 + lane_of_warp() / FRAGMENT;
#else
        return lane_of_warp() / FRAGMENT * COUNT + i;
#endif
    }

    // All 32, or half of them: low ones where `half` is 0, high ones where it is 1.
#if defined(PROPOLIS_MMA)
    PROPOLIS_METHOD void add(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(at[0]), "+r"(at[1]), "+r"(at[2]), "+r"(at[3])
            : "r"(w[0].low[0]), "r"(w[1].low[0]), "r"(w[0].high[0]), "r"(w[1].high[0]), "r"(x.low[0]), "r"(x.high[0]));
    }
    template <int half>
    PROPOLIS_METHOD void add_half(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) {
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+r"(at[0]), "+r"(at[1]), "+r"(at[2]), "+r"(at[3])
            : "r"(half ? w[0].high[0] : w[0].low[0]), "r"(half ? w[1].high[0] : w[1].low[0]),
              "r"(half ? x.high[0] : x.low[0]));
    }
#elif defined(PROPOLIS_WMMA) || defined(__gfx90a__)
    PROPOLIS_METHOD void add(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) {
        add_half<0>(w, x);
        add_half<1>(w, x);
    }
    template <int half>
    PROPOLIS_METHOD void add_half(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) {
        const auto& rows = half ? x.high : x.low;
        const auto& columns = half ? w[0].high : w[0].low;
#if defined(__gfx90a__)
        keep(__builtin_amdgcn_mfma_i32_16x16x16i8((i32)rows[0], (i32)columns[0], sums(), 0, 0, 0));
#else
        typedef i32 Words __attribute__((ext_vector_type(QUARTERS)));
        Words a, b;
#pragma unroll
        for (int i = 0; i < QUARTERS; ++i) a[i] = (i32)rows[i], b[i] = (i32)columns[i];
#if PROPOLIS_WMMA == 12
        keep(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, a, true, b, sums(), false));
#else
        keep(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a, true, b, sums(), false));
#endif
#endif
    }
#elif defined(PROPOLIS_MFMA)
    PROPOLIS_METHOD void add(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) {
        add(w[0].low[0], w[0].high[0], x.low[0], x.high[0]);
    }
    // The instruction is for 32.
    template <int half>
    PROPOLIS_METHOD void add_half(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) {
        add(half ? 0 : w[0].low[0], half ? w[0].high[0] : 0, x.low[0], x.high[0]);
    }
#else
    // The simulator: by way of shared memory.
    PROPOLIS_METHOD void add(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) { add<0, 8>(w[0], x); }
    template <int half>
    PROPOLIS_METHOD void add_half(const ByteQuarters (&w)[OWN_ROWS], const ByteQuarters& x) {
        add<half * 4, half * 4 + 4>(w[0], x);
    }
#endif

#if !defined(PROPOLIS_MMA)
  private:
#endif
#if defined(PROPOLIS_AMD)
    typedef i32 Vector __attribute__((ext_vector_type(COUNT)));
    PROPOLIS_METHOD Vector sums() const {
        Vector made;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) made[i] = at[i];
        return made;
    }
    PROPOLIS_METHOD void keep(Vector made) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] = made[i];
    }
#if defined(PROPOLIS_MFMA) && !defined(__gfx90a__)
    PROPOLIS_METHOD void add(u32 low_w, u32 high_w, u32 low_x, u32 high_x) {
        keep(__builtin_amdgcn_mfma_i32_16x16x32_i8((i64)((u64)high_x << 32 | low_x), (i64)((u64)high_w << 32 | low_w),
                                                   sums(), 0, 0, 0));
    }
#endif
#elif !defined(PROPOLIS_MMA)
    template <int first, int end>
    PROPOLIS_METHOD void add(const ByteQuarters& w, const ByteQuarters& x) {
        __shared__ u32 held[BLOCK / PROPOLIS_WARP][2][FRAGMENT][8];
        auto& own = held[warp_of_block()];
        for (int i = 0; i < QUARTERS; ++i) {
            own[0][own_row(0)][quarter(i)] = w.low[i], own[0][own_row(0)][4 + quarter(i)] = w.high[i];
            own[1][own_column()][quarter(i)] = x.low[i], own[1][own_column()][4 + quarter(i)] = x.high[i];
        }
        sync_warp();
        for (int i = 0; i < COUNT; ++i) {
            for (int k = first; k < end; ++k) {
                for (int b = 0; b < 32; b += 8) {
                    at[i] += (i32)(i8)(own[0][own_row(0)][k] >> b) * (i32)(i8)(own[1][of_column(i)][k] >> b);
                }
            }
        }
        sync_warp();
    }
#endif
};
#endif
