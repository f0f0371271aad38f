// Mixtures of experts, with plain weights.  Semantics: core's propolis/ops/moe.py.
#include "propolis_experts.h"
#include "propolis_order.h"

// -- the gate: a warp has a token ----------------------------------------------------------------

// Softmax over all experts; those that come first in order, one after the other.
template <class E, class T>
PROPOLIS_FN void gate(T* weights, i64* chosen, const T* logits, i64 tokens, i64 experts, i64 k,
                      i64 row, i64 step, i32 renormalize) {
    typedef Compute<T> C;
    constexpr i32 kind = sizeof(C) == 8 ? KIND_F64 : KIND_F32;
    constexpr int warps = BLOCK / PROPOLIS_WARP;
    const int lane = lane_of_warp();
    for (i64 token = (i64)block_x() * warps + warp_of_block(); token < tokens;
         token += (i64)blocks_x() * warps) {
        const T* from = logits + token * row;
        C max = (C)-PROPOLIS_INF;
        for (i64 e = lane; e < experts; e += PROPOLIS_WARP) {
            const C x = wide(from[e * step]);
            max = x > max ? x : max;
        }
        max = warp_reduce(max, [](C a, C b) { return a > b ? a : b; });
        C all = 0;
        for (i64 e = lane; e < experts; e += PROPOLIS_WARP) all += math::exp(wide(from[e * step]) - max);
        all = warp_reduce(all, [](C a, C b) { return a + b; });
        C some = 0;
        E found = E::last();
        for (i64 j = 0; j < k; ++j) {
            E best = E::last();
            for (i64 e = lane; e < experts; e += PROPOLIS_WARP) {
                const C x = wide(from[e * step]);
                typedef typename Word<sizeof(C)>::type Bits;
                const E entry = E::of(bits_as<Bits>(x), kind, true, e);
                if ((j == 0 || found.before(entry)) && entry.before(best)) best = entry;
            }
            for (int mask = PROPOLIS_WARP / 2; mask > 0; mask >>= 1) {
                const E other = shuffle_xor(best, mask);
                if (other.before(best)) best = other;
            }
            found = best;
            some += math::exp(wide(from[found.place() * step]) - max);
            // Each of its own, which it reads again below.
            if (j % PROPOLIS_WARP == lane) chosen[token * k + j] = found.place();
        }
        const C total = renormalize ? some : all;
        for (i64 j = lane; j < k; j += PROPOLIS_WARP) {
            const C x = wide(from[chosen[token * k + j] * step]);
            weights[token * k + j] = narrow<T>(math::exp(x - max) / total);
        }
    }
}

#define GATE(T, E)                                                                              \
    PROPOLIS_KERNEL moe_gate_##T(T* weights, i64* chosen, const T* logits, i64 tokens,          \
                                 i64 experts, i64 k, i64 row, i64 step, i32 renormalize) {      \
        gate<E>(weights, chosen, logits, tokens, experts, k, row, step, renormalize);           \
    }
GATE(f64, LongEntry)
GATE(f32, ShortEntry)
GATE(f16, ShortEntry)
GATE(bf16, ShortEntry)
GATE(f8e4m3, ShortEntry)
GATE(f8e5m2, ShortEntry)

// -- pairs in the order of experts ---------------------------------------------------------------

// A block puts the pairs of an expert in their place, by counting those of the experts before it.
// An id that is none of the experts counts as one more, behind all.
PROPOLIS_KERNEL moe_group(i32* order, i32* starts, const i64* ids, i64 pairs, i64 choices,
                          i64 token_step, i64 choice_step, i64 experts) {
    const auto expert_of = [&](i32 pair) {
        const i32 token = pair / (i32)choices;
        const i64 id = ids[token * token_step + (pair - token * (i32)choices) * choice_step];
        return id >= 0 && id < experts ? id : experts;
    };
    for (i64 expert = block_x(); expert <= experts; expert += blocks_x()) {
        u32 before = 0, own = 0;
        for (i32 pair = (i32)thread_x(); pair < pairs; pair += BLOCK) {
            const i64 id = expert_of(pair);
            before += id < expert ? 1 : 0;
            own += id == expert ? 1 : 0;
        }
        before = block_sum(before);
        own = block_sum(own);
        if (thread_x() == 0) {
            starts[expert] = (i32)before;
            if (expert == experts) starts[experts + 1] = (i32)pairs;
        }
        const u32 end = before + own;
        for (i32 base = 0; before < end; base += BLOCK) {
            const i32 pair = base + (i32)thread_x();
            const bool mine = pair < pairs && expert_of(pair) == expert;
            const Scanned<u32> scanned = block_scan<u32>(mine ? 1 : 0);
            if (mine) order[before + scanned.before] = pair;
            before += scanned.total;
        }
    }
}

// -- products ------------------------------------------------------------------------------------

template <class T>
struct PlainExperts {
    const T* w;
    const ExpertShape& p;

    PROPOLIS_METHOD PlainWeights<T> operator()(i32 expert) const {
        return PlainWeights<T>(w + expert * p.w_expert, p.n, p.depth, p.w_row, p.w_step);
    }
};

#define LINEAR(T)                                                                                \
    PROPOLIS_KERNEL moe_tile64_##T(T* out, const T* x, const T* w, const i32* order,             \
                                   const i32* starts, ExpertShape p) {                           \
        experts_in_tiles<64>(out, x, Grouped{order, starts}, p, PlainExperts<T>{w, p});          \
    }                                                                                            \
    PROPOLIS_KERNEL moe_rows4_##T(T* out, const T* x, const T* w, const i32* order,              \
                                  const i32* starts, ExpertShape p, i64 lanes) {                 \
        typedef Compute<T> C;                                                                    \
        experts_of_rows<C>(                                                                      \
            Grouped{order, starts}, p, PlainExperts<T>{w, p}, (int)lanes,                        \
            [&](i64 at, C(&run)[RUN]) { load_run(x + at, run); },                                \
            [&](i64 at, C value) { out[at] = narrow<T>(value); });                               \
    }
LINEAR(f64)
LINEAR(f32)
LINEAR(f16)
LINEAR(bf16)
LINEAR(f8e4m3)
LINEAR(f8e5m2)
