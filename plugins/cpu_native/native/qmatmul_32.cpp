// Products with weights in blocks of 32 elements.
#include "blocks.h"
#include "formats_32.h"

namespace propolis {
namespace {

constexpr Format FORMATS[] = {
    format<Q4_0>("q4_0"), format<Q4_1>("q4_1"), format<Q5_0>("q5_0"), format<Q5_1>("q5_1"),
    format<Q8_0>("q8_0"), format<IQ4_NL>("iq4_nl"), format<MXFP4>("mxfp4"),
};

}  // namespace

std::span<const Format> formats_of_32() { return FORMATS; }

}  // namespace propolis
