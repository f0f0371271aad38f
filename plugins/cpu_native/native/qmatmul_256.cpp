// Products with weights in blocks of 256 elements.
#include "blocks.h"
#include "formats_256.h"

namespace propolis {
namespace {

constexpr Format FORMATS[] = {
    format<Q2_K>("q2_k"), format<Q3_K>("q3_k"), format<Q4_K>("q4_k"), format<Q5_K>("q5_k"),
    format<Q6_K>("q6_k"), format<IQ4_XS>("iq4_xs"), format<TQ1_0>("tq1_0"), format<TQ2_0>("tq2_0"),
};

}  // namespace

std::span<const Format> formats_of_256() { return FORMATS; }

}  // namespace propolis
