// Sums up to each element.  Semantics: core's propolis/ops/reduce.py.  A block goes along a row, or
// along a chunk of a long one, whose sums before it others have left; where rows lie side by side and
// are many, a thread takes each.
#include "propolis_accumulate.h"
#include "propolis_elementwise.h"
#include "propolis_scan.h"

// What is added up: integers without a sign, so that they wrap around.
template <class T>
using Running = Unsigned<Wide<T>>;

// A row of `width` elements in chunks, of which the grid has `splits` each.
struct Rows {
    i64 rows, width;
    i64 step, out_step;  // between elements of x, and of the output
    i64 chunk;
    i64 splits;
};

// The sum of each chunk.
template <class T>
PROPOLIS_FN void chunk_sums(const T* x, u32* scratch, const Rows& p, const Strided2& s) {
    typedef Running<T> A;
    for (i64 block = block_x(); block < p.rows * p.splits; block += blocks_x()) {
        const i64 row = block / p.splits;
        const i64 begin = (block - row * p.splits) * p.chunk;
        const i64 end = begin + p.chunk < p.width ? begin + p.chunk : p.width;
        const T* from = x + locate(again(s), row).at[0];
        A sum = 0;
#pragma unroll 4
        for (i64 i = begin + thread_x(); i < end; i += BLOCK) sum += (A)wide(from[i * p.step]);
        sum = block_sum(sum);
        if (thread_x() == 0) partials<A>(scratch)[block] = sum;
    }
}

template <class T>
PROPOLIS_FN void along_rows(T* out, const T* x, const u32* scratch, const Rows& p,
                            const Strided2& s) {
    typedef Running<T> A;
    __shared__ T tile[BLOCK * EACH];
    for (i64 block = block_x(); block < p.rows * p.splits; block += blocks_x()) {
        const i64 row = block / p.splits;
        const i64 part = block - row * p.splits;
        const i64 begin = part * p.chunk;
        const i64 end = begin + p.chunk < p.width ? begin + p.chunk : p.width;
        const Offsets<2> at = locate(again(s), row);
        const T* from = x + at.at[0];
        T* to = out + at.at[1];
        A carry = 0;
        if (p.splits > 1) {
            const A* sums = partials<A>(scratch) + row * p.splits;
            for (i64 k = thread_x(); k < part; k += BLOCK) carry += sums[k];
            carry = block_sum(carry);
        }
        for (i64 start = begin; start < end; start += BLOCK * EACH) {
            const int count = end - start < BLOCK * EACH ? (int)(end - start) : BLOCK * EACH;
            // Through shared memory: neighbours in a row belong to one thread, but are loaded by
            // neighbouring ones.
#pragma unroll 2
            for (int i = (int)thread_x(); i < BLOCK * EACH; i += BLOCK) {
                tile[i] = i < count ? from[(start + i) * p.step] : T{};
            }
            __syncthreads();
            A upto[EACH];
            A sum = 0;
#pragma unroll
            for (int k = 0; k < EACH; ++k) {
                sum += (A)wide(tile[(int)thread_x() * EACH + k]);
                upto[k] = sum;
            }
            const Scanned<A> scanned = block_scan(sum);
            const A before = carry + scanned.before;
#pragma unroll
            for (int k = 0; k < EACH; ++k) {
                tile[(int)thread_x() * EACH + k] = from_wide<T>((Wide<T>)(before + upto[k]));
            }
            carry += scanned.total;
            __syncthreads();
            for (int i = (int)thread_x(); i < count; i += BLOCK) {
                to[(start + i) * p.out_step] = tile[i];
            }
            __syncthreads();
        }
    }
}

// Floats are added one by one here, so what each sum was rounded by is added up too (Neumaier 1974).
template <class T>
PROPOLIS_FN void along_columns(T* out, const T* x, const Rows& p, const Strided2& s) {
    typedef Running<T> A;
    const Span span = span_of(1);
    for (i64 row = span.first; row < p.rows; row += span.step) {
        const Offsets<2> at = locate(again(s), row);
        const T* from = x + at.at[0];
        T* to = out + at.at[1];
        A sum = 0, lost = 0;
#pragma unroll 4
        for (i64 i = 0; i < p.width; ++i) {
            const A value = (A)wide(from[i * p.step]);
            const A next = sum + value;
            if constexpr (is_float<T>) {
                const bool larger = math::fabs(sum) >= math::fabs(value);
                const A rest = larger ? (sum - next) + value : (value - next) + sum;
                lost += math::fabs(next) < (A)PROPOLIS_INF ? rest : (A)0;
            }
            sum = next;
            to[i * p.out_step] = from_wide<T>((Wide<T>)(sum + lost));
        }
    }
}

#define CUMSUM(T)                                                                                \
    PROPOLIS_KERNEL reduce_cumsum_sums_##T(const T* x, u32* scratch, Rows p, Strided2 s) {       \
        chunk_sums(x, scratch, p, s);                                                            \
    }                                                                                            \
    PROPOLIS_KERNEL reduce_cumsum_rows_##T(T* out, const T* x, u32* scratch, Rows p,             \
                                           Strided2 s) {                                         \
        along_rows(out, x, scratch, p, s);                                                       \
    }                                                                                            \
    PROPOLIS_KERNEL reduce_cumsum_columns_##T(T* out, const T* x, Rows p, Strided2 s) {          \
        along_columns(out, x, p, s);                                                             \
    }
CUMSUM(f64)
CUMSUM(f32)
CUMSUM(f16)
CUMSUM(bf16)
CUMSUM(f8e4m3)
CUMSUM(f8e5m2)
CUMSUM(u8)
CUMSUM(i8)
CUMSUM(i16)
CUMSUM(u32)
CUMSUM(i64)
