// Convolutions of videos.  Semantics: core's propolis/ops/conv.py; sums are in f32, of f64 in f64.
#include "propolis_convolve.h"

#define ARGUMENTS(T)                                                                        \
    T *out, const T *x, const T *w, const T *bias, ConvShape s, ConvPlanes planes, i64 first, \
        Strided3 batches
#define GIVEN out, x, w, bias, s, first, batches

#define TILES(T, side)                                      \
    PROPOLIS_KERNEL conv_volumes_tile##side##_##T(ARGUMENTS(T)) { \
        convolve_in_tiles<side>(GIVEN, planes);             \
    }
#define VOLUMES(T)                                                        \
    TILES(T, 64)                                                          \
    PROPOLIS_KERNEL conv_volumes_direct4_##T(ARGUMENTS(T), i64 slices) {  \
        convolve_directly<4>(GIVEN, (int)slices, planes);                 \
    }
VOLUMES(f32)
VOLUMES(f16)
VOLUMES(bf16)
VOLUMES(f8e4m3)
VOLUMES(f8e5m2)
VOLUMES(f64)
TILES(f32, 128)
TILES(f16, 128)
TILES(bf16, 128)
