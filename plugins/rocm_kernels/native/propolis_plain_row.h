// Products of one row of activations with weights of the same dtype.  The row lies in shared memory; sums are in f32.
#pragma once

#include "propolis_normed.h"

// A row as it is, zeros behind it.  Chunks of PACK_BYTES are taken four at a time, such that those that eight
// neighbouring lanes load at once are neighbours.
template <class T>
struct PlainRow {
    static constexpr int EACH = PACK_BYTES / (int)sizeof(T);  // elements of a chunk
    typedef Pack<T, EACH> Chunk;
    struct Taken {
        Chunk chunk[CHUNKS];
    };
    T* at;
    int chunks;

    PROPOLIS_METHOD PlainRow(u32* at, int depth) : at((T*)at), chunks(depth / EACH) {}

    PROPOLIS_METHOD int steps() const { return (chunks + NEIGHBOURS * CHUNKS - 1) / (NEIGHBOURS * CHUNKS) * NEIGHBOURS; }
    PROPOLIS_FN int chunk_of(int step, int which) {
        return step / NEIGHBOURS * (NEIGHBOURS * CHUNKS) + which * NEIGHBOURS + step % NEIGHBOURS;
    }

    PROPOLIS_METHOD void load(Taken& own, const u8* row, int step) const {
#pragma unroll
        for (int which = 0; which < CHUNKS; ++which) {
            const int chunk = chunk_of(step, which);
            own.chunk[which] = chunk < chunks ? load_pack<EACH>((const T*)row + chunk * EACH) : Chunk{};
        }
    }
    PROPOLIS_METHOD f32 product(const Taken& own, int step) const {
        f32 sum = 0;
#pragma unroll
        for (int which = 0; which < CHUNKS; ++which) {
            const Chunk x = load_pack<EACH>(at + chunk_of(step, which) * EACH);
#pragma unroll
            for (int i = 0; i < EACH; ++i) sum += wide(own.chunk[which].at[i]) * wide(x.at[i]);
        }
        return sum;
    }

    // As Rounded's.
    PROPOLIS_METHOD void take(const Pack<f32, 4>& numbers, int pack) const {
        if (pack * 4 >= chunks * EACH) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) at[pack * 4 + i] = narrow<T>(numbers.at[i]);
    }
    PROPOLIS_METHOD void end(int threads) const {
        const int all = steps() * CHUNKS * EACH;
        for (int i = chunks * EACH + (int)thread_x(); i < all; i += threads) at[i] = narrow<T>(0.0f);
    }
    // Of all threads of the block.
    PROPOLIS_METHOD void fill(const T* x, int threads) const {
        for (int chunk = (int)thread_x(); chunk < chunks; chunk += threads) {
            store_pack(at + chunk * EACH, load_pack<EACH>(x + chunk * EACH));
        }
        end(threads);
        __syncthreads();
    }
};

template <class T>
PROPOLIS_FN void product_of_plain(T* out, const T* x, const T* bias, i64 bias_step, const u8* w, i64 n, i64 depth,
                                  i64 row_bytes, int lanes, int threads) {
    PROPOLIS_DYNAMIC_SHARED(u32, shared);
    const PlainRow<T> held(shared, (int)depth);
    products_of_one<1>(
        held, w, n, row_bytes, lanes, threads, Halves{n}, [&] { held.fill(x, threads); },
        [&](bool mine, i64 row, const f32(&sum)[1]) {
            if (mine) out[row] = narrow<T>(sum[0] + (bias ? wide(bias[row * bias_step]) : 0.0f));
        });
}
