// Products by groups of four warps (`wgmma`, of NVIDIA's Hopper): 64 rows of the left operand at a time, by up
// to 256 of the right one, both straight from shared memory, while the threads go on.
//
// Operands lie there in rows of 128 bytes, of whose 16-byte packs row r has the i-th at i ^ r % 8: so eight rows
// are read at once.  Along, a row is one of the operand's, 64 deep; across, a row is of one depth, and has 64
// rows of the operand side by side, so that 64 depths are a block, and the next 64 rows another.
//
// What the fields of a descriptor are, and what a thread has of the sums, is said by PTX's document:
// "asynchronous warpgroup level matrix instructions".
#pragma once

#include "propolis_copy.h"

// Only the compiler's pass for that architecture alone has them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PROPOLIS_WGMMA 1
#else
#define PROPOLIS_WGMMA 0
#endif

constexpr int ROW_BYTES = 128;
constexpr int DEPTHS = 64;         // of a tile's operands
constexpr int ALIGNED_TO = 1024;  // bytes, where operands and blocks begin

// Where the i-th pack of a row is, in 16-bit numbers.
PROPOLIS_FN int place_of_pack(int row, int i) { return row * (ROW_BYTES / 2) + (i ^ row % 8) * COPIED; }

#if PROPOLIS_WGMMA
PROPOLIS_FN void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PROPOLIS_FN void end_of_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all products but those of the last `left` groups are summed.
template <int left>
PROPOLIS_FN void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
// What this thread wrote to shared memory, others' products may read after the next barrier.
PROPOLIS_FN void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// From 16 depths to the next, in the unit of descriptors; and a descriptor of an operand from its first on.
template <bool across>
constexpr int DEPTHS_APART = across ? FRAGMENT * ROW_BYTES / 16 : FRAGMENT * 2 / 16;
template <bool across>
PROPOLIS_FN u64 operand_at(const void* first) {
    const u64 to_next_block = across ? DEPTHS * ROW_BYTES / 16 : 1, to_next_rows = 8 * ROW_BYTES / 16;
    const u64 swizzled = 1;  // by rows of 128 bytes
    return (shared_address(first) & 0x3ffff) >> 4 | to_next_block << 16 | to_next_rows << 32 | swizzled << 62;
}

#define PROPOLIS_SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PROPOLIS_SUMS_16 PROPOLIS_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PROPOLIS_SUMS_32 PROPOLIS_SUMS_16 ", " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PROPOLIS_SUMS_64 PROPOLIS_SUMS_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PROPOLIS_SUMS_96 PROPOLIS_SUMS_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define PROPOLIS_SUMS_128 PROPOLIS_SUMS_96 ", " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PROPOLIS_SUM(j)                                                                             \
    "+f"(to[j].at[0]), "+f"(to[j].at[1]), "+f"(to[j].at[2]), "+f"(to[j].at[3]), "+f"(to[j].at[4]),  \
        "+f"(to[j].at[5]), "+f"(to[j].at[6]), "+f"(to[j].at[7])
#define PROPOLIS_TO_1 PROPOLIS_SUM(0)
#define PROPOLIS_TO_2 PROPOLIS_TO_1, PROPOLIS_SUM(1)
#define PROPOLIS_TO_4 PROPOLIS_TO_2, PROPOLIS_SUM(2), PROPOLIS_SUM(3)
#define PROPOLIS_TO_8 PROPOLIS_TO_4, PROPOLIS_SUM(4), PROPOLIS_SUM(5), PROPOLIS_SUM(6), PROPOLIS_SUM(7)
#define PROPOLIS_TO_12 PROPOLIS_TO_8, PROPOLIS_SUM(8), PROPOLIS_SUM(9), PROPOLIS_SUM(10), PROPOLIS_SUM(11)
#define PROPOLIS_TO_16 PROPOLIS_TO_12, PROPOLIS_SUM(12), PROPOLIS_SUM(13), PROPOLIS_SUM(14), PROPOLIS_SUM(15)
// The products of 16 depths, of rows of the left operand that this warp's group has, to each thread's sums.
#define PROPOLIS_MULTIPLY(type, columns, n, sums, a, b, way)                                        \
    template <bool across>                                                                          \
    PROPOLIS_FN void multiply_group(Sums (&to)[columns], u64 left, u64 right, type) {               \
        asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" n \
                     "k16.f32." #type "." #type " {" sums "}, %" a ", %" b ", add, 1, 1, 0, %" way  \
                     "; }"                                                                          \
                     : PROPOLIS_TO_##columns                                                        \
                     : "l"(left), "l"(right), "n"(across ? 1 : 0));                                 \
    }
#define PROPOLIS_BOTH(...) PROPOLIS_MULTIPLY(f16, __VA_ARGS__) PROPOLIS_MULTIPLY(bf16, __VA_ARGS__)
PROPOLIS_BOTH(2, "32", PROPOLIS_SUMS_16, "16", "17", "18")
PROPOLIS_BOTH(8, "128", PROPOLIS_SUMS_64, "64", "65", "66")
PROPOLIS_BOTH(12, "192", PROPOLIS_SUMS_96, "96", "97", "98")
PROPOLIS_BOTH(16, "256", PROPOLIS_SUMS_128, "128", "129", "130")

// What instructions read from registers while the threads go on is to be there before they begin.
struct HeldWords {
    u32 top[4], below[4];
    PROPOLIS_METHOD void keep(const Held<bf16>& held) {
        const auto first = bits_as<Pack<u32, 4>>(held.runs[0]), second = bits_as<Pack<u32, 4>>(held.runs[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            top[i] = first.at[i], below[i] = second.at[i];
            asm volatile("" : "+r"(top[i]), "+r"(below[i])::"memory");  // else the compiler may make it later
        }
    }
};

// The same with 16 depths of the left operand in registers, the k-th half of a warp's 16 rows that are held.
#define PROPOLIS_MULTIPLY_HELD(columns, n, sums, a, b)                                                       \
    PROPOLIS_FN void multiply_held(Sums (&to)[columns], const HeldWords& left, int k, u64 right) {           \
        asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" n          \
                     "k16.f32.bf16.bf16 {" sums "}, {" a "}, %" b ", add, 1, 1, 0; }"                        \
                     : PROPOLIS_TO_##columns                                                                 \
                     : "r"(left.top[2 * k]), "r"(left.below[2 * k]), "r"(left.top[2 * k + 1]),               \
                       "r"(left.below[2 * k + 1]), "l"(right));                                              \
    }
PROPOLIS_MULTIPLY_HELD(1, "16", PROPOLIS_SUMS_8, "%8, %9, %10, %11", "12")
PROPOLIS_MULTIPLY_HELD(2, "32", PROPOLIS_SUMS_16, "%16, %17, %18, %19", "20")
PROPOLIS_MULTIPLY_HELD(4, "64", PROPOLIS_SUMS_32, "%32, %33, %34, %35", "36")
PROPOLIS_MULTIPLY_HELD(8, "128", PROPOLIS_SUMS_64, "%64, %65, %66, %67", "68")

// The first of these numbers where operands may begin.
template <class T>
PROPOLIS_FN T* aligned_operands(T* from) {
    return from + (ALIGNED_TO - shared_address(from) % ALIGNED_TO) % ALIGNED_TO / sizeof(T);
}
#endif
