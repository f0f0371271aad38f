// Scales that are an exponent alone (E8M0), as mxfp4 has them.
#pragma once

#include "propolis_device.h"

// 2**(e - 128), below 2**-126 as a denormal number: half of what the exponent stands for, because
// quants are twice their value.  255 is a power of two as all others are: ggml knows no NaN there.
PROPOLIS_FN f32 half_of_e8m0(u32 e) {
    return bits_as<f32>(e > 1 ? (e - 1) << 23 : 0x00400000u >> (1 - e));
}
