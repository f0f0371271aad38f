// Windows as rows of a matrix.  Semantics: core's propolis/ops/conv.py.  Elements are moved as they
// are, so one kernel serves all dtypes of a size.
#include "propolis_images.h"

// Windows of an image; [0] is of rows, [1] of columns.
struct WindowShape {
    i64 strides[2];  // of x
    i64 size[2], kernel[2], padding[2], dilation[2];
};

// `s` walks x and the first row and column of a window, and the taps of its kernel.
template <class T>
PROPOLIS_FN void im2col(T* out, const T* x, i64 n, const WindowShape& w, u64 magic, i32 shift,
                        const Strided4& s) {
    constexpr int N = pack_of(sizeof(T), true);
    each_element<N>(out, n, w.kernel[0] * w.kernel[1], s, [&](const Offsets<4>& at) {
        const i64 i = divided(at.at[3], magic, shift);
        const i64 j = at.at[3] - i * w.kernel[1];
        const i64 row = at.at[1] + i * w.dilation[0] - w.padding[0];
        const i64 column = at.at[2] + j * w.dilation[1] - w.padding[1];
        const bool inside = (u64)row < (u64)w.size[0] && (u64)column < (u64)w.size[1];
        T value = 0;
        if (inside) value = x[at.at[0] + row * w.strides[0] + column * w.strides[1]];
        return value;
    });
}

#define IM2COL(size, T)                                                                        \
    PROPOLIS_KERNEL conv_columns_b##size(T* out, const T* x, i64 n, WindowShape w, u64 magic,  \
                                         i32 shift, Strided4 s) {                              \
        im2col(out, x, n, w, magic, shift, s);                                                 \
    }
IM2COL(1, u8)
IM2COL(2, u16)
IM2COL(4, u32)
IM2COL(8, u64)
