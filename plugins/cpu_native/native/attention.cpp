// Attention by vectors: each sequence by the way that suits as many queries as it has.
// Sums and softmax are in f32.  Semantics: core's propolis/ops/attention.py.
#include "attention.h"

#include "attention_few.h"
#include "attention_many.h"

namespace propolis {
namespace {

// Queries of a sequence, up to which each is looked at by itself: with AVX2 it is faster so up to eight that share keys
// with other heads, and up to six that do not.
constexpr i64 FEW = 6;

}  // namespace

void attention(const Attention& a, i64 most) {
    bool some[3] = {};
    const Tokens kinds[3] = {{1, FEW}, {FEW + 1, LANES}, {LANES + 1, most}};
    for (i64 s = 0; s < a.batch; ++s) {
        for (int kind = 0; kind < 3; ++kind) some[kind] |= kinds[kind](sequence_at(a, s));
    }
    const auto run = [&](auto type, auto kept) {
        typedef decltype(type) T;
        typedef decltype(kept) K;
        if (some[0]) few<T, K>(a, kinds[0]);
        if (some[1]) many<T, K, 1>(a, kinds[1]);
        if (some[2]) many<T, K, MOST_VECTORS>(a, kinds[2]);
    };
    switch (a.kept) {
        case Kept::SAME: return with_type(a.kind, [&](auto type) { run(type, type); });
        case Kept::F16: return run(f32{}, f16{});
        case Kept::BF16: return run(f32{}, bf16{});
        case Kept::Q8: return run(f32{}, Q8{});
    }
}

}  // namespace propolis
