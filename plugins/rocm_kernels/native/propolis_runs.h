// Operands of products, RUN neighbours (eight) at a time: a "run".  Rows of plain numbers are here,
// those of the GGUF block formats in propolis_blocks.h.  Every operand has
//
//     across()              whether neighbours in memory belong to different rows
//     fetch(row, k, run)    the run of `row` from its element k on, or where `across` the
//                           elements k of eight rows; what is outside the matrix, which is
//                           not empty, is 0
#pragma once

#include "propolis_device.h"

template <class T>
constexpr int RUN_PACK = sizeof(T) * RUN < PACK_BYTES ? RUN : PACK_BYTES / (int)sizeof(T);

// A run from where it may be loaded in packs.
template <class T, class C>
PROPOLIS_FN void load_run(const T* from, C (&run)[RUN]) {
    constexpr int N = RUN_PACK<T>;
#pragma unroll
    for (int first = 0; first < RUN; first += N) {
        const Pack<T, N> pack = load_pack<N>(from + first);
#pragma unroll
        for (int k = 0; k < N; ++k) run[first + k] = (C)wide(pack.at[k]);
    }
}

// The first `count` numbers, `step` apart; 0 for the others, which are not read.
template <class T, class C>
PROPOLIS_FN void load_some(const T* from, i64 step, i64 count, C (&run)[RUN]) {
    const int last = count < RUN ? (int)count - 1 : RUN - 1;
#pragma unroll
    for (int k = 0; k < RUN; ++k) {
        // Without a branch: what is there is read again, and not taken.
        const C value = (C)wide(*from);
        run[k] = k <= last ? value : (C)0;
        from += k < last ? step : 0;
    }
}

// Whether runs that start at multiples of 8 of a row, or of a column, may be loaded in packs.
template <class T>
PROPOLIS_FN bool in_packs(const T* at, i64 other_stride) {
    return aligned<RUN_PACK<T>>(at) && other_stride % RUN_PACK<T> == 0;
}

// Numbers at at[i * row + k * step], multiplied as C.
template <class T, class Computed = Compute<T>>
struct PlainRows {
    const T* at;
    i64 rows, depth;
    i64 row, step;
    bool packed;

    typedef Computed C;
    PROPOLIS_METHOD PlainRows(const T* at, i64 rows, i64 depth, i64 row, i64 step)
        : at(at), rows(rows), depth(depth), row(row), step(step) {
        packed = across() ? in_packs(at, step) : step == 1 && in_packs(at, row);
    }
    PROPOLIS_METHOD bool across() const { return row == 1 && step != 1; }
    PROPOLIS_METHOD void fetch(i64 i, i64 k, C (&run)[RUN]) const {
        const bool inside = i < rows && k < depth;
        const i64 there = inside ? (across() ? rows - i : depth - k) : 0;
        const T* from = at + (inside ? i * row + k * step : 0);
        if (packed && there >= RUN) {
            load_run(from, run);
        } else {
            load_some(from, across() ? row : step, there, run);
        }
    }
};

// Numbers at at[i * row + k], where all runs may be loaded in packs.
template <class T>
struct PackedRows {
    const T* at;
    i64 row;
    i32 rows, depth;

    typedef Compute<T> C;
    PROPOLIS_METHOD bool across() const { return false; }
    PROPOLIS_METHOD void fetch(i64 i, i64 k, C (&run)[RUN]) const {
        const bool inside = i < rows && k < depth;
        load_run(at + (inside ? i * row + k : 0), run);
#pragma unroll
        for (int e = 0; e < RUN; ++e) run[e] = inside ? run[e] : (C)0;
    }
};

// A thread's way through an operand: from one place of a tile to the same of the next, `step` deeper.
template <class Operand>
struct Walk {
    const Operand& operand;
    i64 row, k;

    PROPOLIS_METHOD Walk(const Operand& operand, i64 row, i64 k) : operand(operand), row(row), k(k) {}
    template <class C>
    PROPOLIS_METHOD void fetch(C (&run)[RUN]) const {
        operand.fetch(row, k, run);
    }
    PROPOLIS_METHOD void deeper(int step) { k += step; }
};

// Whether an operand has elements that take part in no product (see propolis_tile.h).
template <class Operand>
constexpr bool has_absent = false;

// Eight weights of a row, each scale * q + shift; formats without one or both say so.
template <class C>
struct Weights {
    C q[RUN];
    C scale;
    C shift;
};
