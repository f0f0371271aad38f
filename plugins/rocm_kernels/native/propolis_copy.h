// Copies from memory to shared memory, of operands of matrix instructions.
#pragma once

#include "propolis_matrix.h"

constexpr int COPIED = 8;  // numbers that a thread copies at once: 16 bytes

// 16 bytes from a multiple of 16 on, of which at least one may be read: of what lies beyond `bytes` nothing is said.  AMD's
// GPUs map memory by pages.  To load it byte by byte is to wait for each.
typedef Pack<u32, PACK_BYTES / 4> Piece;
PROPOLIS_FN Piece load_piece(const u8* at, [[maybe_unused]] i32 bytes) {
#if defined(PROPOLIS_AMD)
    return load_pack<PACK_BYTES / 4>((const u32*)at);
#else
    Piece piece = {};  // the simulator's memory ends where tensors do
    for (int b = 0; b < bytes; ++b) piece.at[b / 4] |= (u32)at[b] << b % 4 * 8;
    return piece;
#endif
}

// Copies that end later, where there are such: 16 bytes of which those beyond `bytes` are 0.
#if defined(PROPOLIS_MMA)
PROPOLIS_FN void copy_async(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
PROPOLIS_FN void copy_async(void* to, const void* from, int bytes) {
    copy_async(shared_address(to), from, bytes);
}
PROPOLIS_FN void end_of_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last `stages` - 2 groups of copies, or two, have ended.
PROPOLIS_FN void wait_for_stage(int stages) {
    if (stages >= 4) {
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    } else if (stages == 3) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
}
#else
// As many on their way through registers.  Whether they are there is asked when they are stored: who asks as they are
// loaded waits for them there, and has nothing on its way.
template <class T>
struct Coming {
    static_assert(sizeof(T) == 2, "Coming: of 16 bits");
    Pack<u32, COPIED / 2> held;
    bool there;

    PROPOLIS_METHOD void load(const T* from, bool exists) {
        held = load_pack<COPIED / 2>((const u32*)(const void*)from);
        there = exists;
    }
    // Zeros unless they are there.
    PROPOLIS_METHOD u32 word(int i) const { return there ? held.at[i] : 0u; }
    PROPOLIS_METHOD void store(T* to) const {
        Pack<u32, COPIED / 2> words;
#pragma unroll
        for (int i = 0; i < COPIED / 2; ++i) words.at[i] = word(i);
        store_pack<COPIED / 2>((u32*)(void*)to, words);
    }
};
#endif
