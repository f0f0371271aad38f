// Matrix instructions: what a warp multiplies at once.  One interface, of five bodies: WMMA (gfx11 and
// gfx120x), MFMA (gfx90a, gfx942, gfx950), NVIDIA's mma, and plain sums in the simulator.  Where none of these are,
// PROPOLIS_FRAGMENTS is 0, and kernels have no bodies: Python launches none (ops_matmul_matrix.py).
//
//     Left<T>    16 rows of the left operand, 16 deep
//     Right<T>   16 rows of the right operand, transposed as in a @ b.T, 16 deep
//     Sums       their 16 x 16 products, in f32: this thread's `at[i]` is that of row(i) and column(i)
//
// Operands are loaded from shared memory: `along`, where neighbours in depth lie side by side, or
// `across`, where neighbouring rows do; `apart` is then from one row, or depth, to the next.
//
//     Held<T>    16 rows of either operand, SPAN deep, which each thread brings from anywhere: its
//                `runs[i]` are the eight neighbours of row(i) from depth(i) on.  Instructions have
//                them in another order in depth, of both operands the same.
//
// An operand may be brought right `from_memory` too, where depths from some on are 0, and rows anything: the
// first has to be memory, even where there are none.
//
// All threads of a warp load and multiply together.  What each holds is said by AMD's and
// NVIDIA's documents of the instruction sets (RDNA 3 and 4: 7.9; CDNA 2 and 3: 7.1; PTX: mma).
#pragma once

#include "propolis_reduce.h"

#if defined(__CUDACC__)
#define PROPOLIS_MMA 1
#elif defined(PROPOLIS_AMD) && defined(__GFX12__) && !defined(__gfx1250__) && !defined(__gfx1251__)
#define PROPOLIS_WMMA 12
#elif defined(PROPOLIS_AMD) && defined(__GFX11__)
#define PROPOLIS_WMMA 11
#elif defined(PROPOLIS_AMD) && (defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__))
#define PROPOLIS_MFMA 1
#endif
#if defined(PROPOLIS_AMD) && !defined(PROPOLIS_WMMA) && !defined(PROPOLIS_MFMA)
#define PROPOLIS_FRAGMENTS 0
#else
#define PROPOLIS_FRAGMENTS 1
#endif

// What the threads of a warp wrote to shared memory, each of them may read.
PROPOLIS_FN void sync_warp() {
#if defined(PROPOLIS_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
    __syncwarp();
#endif
}

#if PROPOLIS_FRAGMENTS
#if defined(PROPOLIS_WMMA)
constexpr int SPAN = 16;
#else
constexpr int SPAN = 32;
#endif
#if defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
constexpr int RUNS_HELD = 2;  // both halves of a warp have the same
#else
constexpr int RUNS_HELD = FRAGMENT * SPAN / RUN / PROPOLIS_WARP;
#endif

template <class T>
struct Held {
    Pack<u16, RUN> runs[RUNS_HELD];
    PROPOLIS_METHOD static int row(int i) {
#if defined(PROPOLIS_MMA)
        return lane_of_warp() / 4 + i * 8;
#else
        (void)i;
        return lane_of_warp() % FRAGMENT;
#endif
    }
    PROPOLIS_METHOD static int depth(int i) {
#if defined(PROPOLIS_MMA)
        (void)i;
        return lane_of_warp() % 4 * RUN;
#elif defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
        return i * RUN;
#else
        return (lane_of_warp() + i * PROPOLIS_WARP) / FRAGMENT * RUN;
#endif
    }
};
#endif

#if defined(PROPOLIS_MMA)

PROPOLIS_FN u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
template <bool transposed>
PROPOLIS_FN void load_matrices(u32 (&to)[4], const void* from) {
    if constexpr (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(shared_address(from)));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(shared_address(from)));
    }
}

template <class T>
struct Left {
    u32 words[4];
    // Matrices by (row, depth): (0, 0), (8, 0), (0, 8), (8, 8).
    template <bool across>
    PROPOLIS_METHOD void load(const T* from, int apart) {
        const int lane = lane_of_warp();
        if constexpr (across) {
            load_matrices<true>(words, from + (lane % 8 + lane / 16 * 8) * apart + lane / 8 % 2 * 8);
        } else {
            load_matrices<false>(words, from + lane % 16 * apart + lane / 16 * 8);
        }
    }
    PROPOLIS_METHOD void from_memory(const T* from, i64 apart, i32 rows, i32 depth) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const int row = lane_of_warp() / 4 + w % 2 * 8, k = lane_of_warp() % 4 * 2 + w / 2 * 8;
            words[w] = k < depth ? *(const u32*)(from + (row < rows ? row * apart : 0) + k) : 0u;
        }
    }
};
template <class T>
struct Right {
    u32 words[4];
    // Matrices by (row, depth): (0, 0), (0, 8), (8, 0), (8, 8).
    template <bool across>
    PROPOLIS_METHOD void load(const T* from, int apart) {
        const int lane = lane_of_warp();
        if constexpr (across) {
            load_matrices<true>(words, from + lane % 16 * apart + lane / 16 * 8);
        } else {
            load_matrices<false>(words, from + (lane % 8 + lane / 16 * 8) * apart + lane / 8 % 2 * 8);
        }
    }
};

PROPOLIS_FN void mma(f32* sum, const Left<f16>& a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b0), "r"(b1));
}
PROPOLIS_FN void mma(f32* sum, const Left<bf16>& a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b0), "r"(b1));
}

struct Sums {
    static constexpr int COUNT = 8;
    static constexpr int RUNS = 2;  // so many neighbours of a row follow each other
    f32 at[COUNT];
    PROPOLIS_METHOD static int row(int i) { return lane_of_warp() / 4 + i / 2 % 2 * 8; }
    PROPOLIS_METHOD static int column(int i) { return i / 4 * 8 + lane_of_warp() % 4 * 2 + i % 2; }
    template <class T>
    PROPOLIS_METHOD void add(const Left<T>& a, const Right<T>& b) {
        mma(at, a, b.words[0], b.words[1]);
        mma(at + 4, a, b.words[2], b.words[3]);
    }
    // Where `few`, of the first eight rows of b.
    template <bool few, class T>
    PROPOLIS_METHOD void add(const Held<T>& a, const Held<T>& b) {
        typedef Pack<u32, 4> Words;
        const Words top = bits_as<Words>(a.runs[0]), below = bits_as<Words>(a.runs[1]);
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const Left<T> left{{top.at[k], below.at[k], top.at[k + 1], below.at[k + 1]}};
#pragma unroll
            for (int half = 0; half < (few ? 1 : 2); ++half) {
                const Words right = bits_as<Words>(b.runs[half]);
                mma(at + half * 4, left, right.at[k], right.at[k + 1]);
            }
        }
    }
};

#elif defined(PROPOLIS_WMMA) || defined(PROPOLIS_MFMA)

// A thread has HELD neighbours in depth of one row: all of them on gfx11, where both halves of a
// warp have the same; else its share.
#if defined(PROPOLIS_MFMA)
constexpr int HELD = 4;
#elif PROPOLIS_WMMA == 12
constexpr int HELD = 8;
#else
constexpr int HELD = 16;
#endif

typedef _Float16 MatrixHalves __attribute__((ext_vector_type(HELD)));
typedef short MatrixBits __attribute__((ext_vector_type(HELD)));

template <class T>
struct Operand {
    Pack<u16, HELD> held;
    template <bool across>
    PROPOLIS_METHOD void load(const T* from, int apart) {
        const int row = lane_of_warp() % FRAGMENT;
        const int depth = lane_of_warp() / FRAGMENT * HELD % FRAGMENT;
        if constexpr (across) {
#pragma unroll
            for (int k = 0; k < HELD; ++k) held.at[k] = from[(depth + k) * apart + row].bits;
        } else {
            constexpr int N = HELD < 8 ? HELD : 8;
#pragma unroll
            for (int first = 0; first < HELD; first += N) {
                const Pack<T, N> pack = load_pack<N>(from + row * apart + depth + first);
#pragma unroll
                for (int k = 0; k < N; ++k) held.at[first + k] = pack.at[k].bits;
            }
        }
    }
    PROPOLIS_METHOD void from_memory(const T* from, i64 apart, i32 rows, i32 depth) {
        constexpr int N = HELD < 8 ? HELD : 8;
        const T* at = from_lane(from, apart, rows);
#pragma unroll
        for (int first = 0; first < HELD; first += N) {
            const bool there = lane_of_warp() / FRAGMENT * HELD % FRAGMENT + first < depth;
            const Pack<T, N> pack = load_pack<N>(there ? at + first : from);
#pragma unroll
            for (int k = 0; k < N; ++k) held.at[first + k] = there ? pack.at[k].bits : (u16)0;
        }
    }
    // Where this thread's share of a fragment begins, and all of it from there.
    PROPOLIS_METHOD static const T* from_lane(const T* from, i64 apart, i32 rows) {
        const int lane = anew(lane_of_warp());
        const int row = lane % FRAGMENT;
        return from + (row < rows ? row * apart : 0) + lane / FRAGMENT * HELD % FRAGMENT;
    }
    PROPOLIS_METHOD void bring(const T* at) {
        constexpr int N = HELD < 8 ? HELD : 8;
#pragma unroll
        for (int first = 0; first < HELD; first += N) {
            const Pack<T, N> pack = load_pack<N>(at + first);
#pragma unroll
            for (int k = 0; k < N; ++k) held.at[first + k] = pack.at[k].bits;
        }
    }
};
template <class T>
using Left = Operand<T>;
template <class T>
using Right = Operand<T>;

struct Sums {
    static constexpr int COUNT = FRAGMENT * FRAGMENT / PROPOLIS_WARP;
    static constexpr int RUNS = 1;
    typedef f32 Vector __attribute__((ext_vector_type(COUNT)));
    f32 at[COUNT];
    PROPOLIS_METHOD static int row(int i) {
#if defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
        return i * 2 + lane_of_warp() / FRAGMENT;
#else
        return lane_of_warp() / FRAGMENT * COUNT + i;
#endif
    }
    PROPOLIS_METHOD static int column(int) { return lane_of_warp() % FRAGMENT; }
    PROPOLIS_METHOD void add(const Operand<f16>& a, const Operand<f16>& b) {
        const MatrixHalves left = bits_as<MatrixHalves>(a.held), right = bits_as<MatrixHalves>(b.held);
#if defined(PROPOLIS_MFMA)
        keep(__builtin_amdgcn_mfma_f32_16x16x16f16(left, right, sums(), 0, 0, 0));
#elif PROPOLIS_WMMA == 12
        keep(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(left, right, sums()));
#else
        keep(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32(left, right, sums()));
#endif
    }
    PROPOLIS_METHOD void add(const Operand<bf16>& a, const Operand<bf16>& b) {
        const MatrixBits left = bits_as<MatrixBits>(a.held), right = bits_as<MatrixBits>(b.held);
#if defined(PROPOLIS_MFMA)
        keep(__builtin_amdgcn_mfma_f32_16x16x16bf16_1k(left, right, sums(), 0, 0, 0));
#elif PROPOLIS_WMMA == 12
        keep(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(left, right, sums()));
#else
        keep(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(left, right, sums()));
#endif
    }
    // Fewer rows of b take as long.
    template <bool few, class T>
    PROPOLIS_METHOD void add(const Held<T>& a, const Held<T>& b) {
#pragma unroll
        for (int first = 0; first < RUNS_HELD * RUN; first += HELD) {
            Operand<T> left, right;
#pragma unroll
            for (int k = 0; k < HELD; ++k) {
                left.held.at[k] = a.runs[(first + k) / RUN].at[(first + k) % RUN];
                right.held.at[k] = b.runs[(first + k) / RUN].at[(first + k) % RUN];
            }
            add(left, right);
        }
    }

  private:
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
};

#elif !defined(PROPOLIS_AMD)

// The simulator has none: each thread sums what lies in shared memory, laid out as on gfx12 and CDNA.
template <class T>
struct Operand {
    const T* from;
    i64 row, step;
    i32 rows = FRAGMENT, depth = FRAGMENT;
    template <bool across>
    PROPOLIS_METHOD void load(const T* first, int apart) {
        from = first;
        row = across ? 1 : apart;
        step = across ? apart : 1;
    }
    PROPOLIS_METHOD void from_memory(const T* first, i64 apart, i32 some, i32 deep) {
        *this = {first, apart, 1, some, deep};
        // The others read the first row also where there is none.
        if (deep > 0) (void)*(const volatile u16*)first;
    }
    PROPOLIS_METHOD void run(int i, f32 (&held)[FRAGMENT]) const {
#pragma unroll
        for (int k = 0; k < FRAGMENT; ++k) {
            held[k] = i < rows && k < depth ? wide(from[i * row + k * step]) : 0.0f;
        }
    }
};
template <class T>
using Left = Operand<T>;
template <class T>
using Right = Operand<T>;

struct Sums {
    static constexpr int COUNT = FRAGMENT * FRAGMENT / PROPOLIS_WARP;
    static constexpr int RUNS = 1;
    f32 at[COUNT];
    PROPOLIS_METHOD static int row(int i) { return lane_of_warp() / FRAGMENT * COUNT + i; }
    PROPOLIS_METHOD static int column(int) { return lane_of_warp() % FRAGMENT; }
    template <class T>
    PROPOLIS_METHOD void add(const Operand<T>& a, const Operand<T>& b) {
        f32 right[FRAGMENT];
        b.run(column(0), right);
#pragma unroll 1
        for (int i = 0; i < COUNT; ++i) {
            f32 left[FRAGMENT];
            a.run(row(i), left);
#pragma unroll
            for (int k = 0; k < FRAGMENT; ++k) at[i] += left[k] * right[k];
        }
    }
    template <bool few, class T>
    PROPOLIS_METHOD void add(const Held<T>& a, const Held<T>& b) {
        __shared__ T held[BLOCK / PROPOLIS_WARP][2][FRAGMENT][SPAN];
        auto& own = held[warp_of_block()];
#pragma unroll
        for (int i = 0; i < RUNS_HELD; ++i) {
            store_pack<RUN>(&own[0][a.row(i)][a.depth(i)], bits_as<Pack<T, RUN>>(a.runs[i]));
            store_pack<RUN>(&own[1][b.row(i)][b.depth(i)], bits_as<Pack<T, RUN>>(b.runs[i]));
        }
        sync_warp();
        for (int first = 0; first < SPAN; first += FRAGMENT) {
            add(Left<T>{&own[0][0][first], SPAN, 1}, Right<T>{&own[1][0][first], SPAN, 1});
        }
        sync_warp();
    }
};

#endif
