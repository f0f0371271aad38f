// The kernels as a program: calls come on standard input, results go to standard output.  So can a test run
// them where Python does not run, as under an emulator of another CPU.
//
// A call is its name, the count of its numbers and they (64 bits each), the count of its arrays and they, each
// after its length.  Strings and arrays are bytes after a length of 64 bits; the answer is one array.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels.h"

using namespace propolis;
typedef std::vector<u8> Bytes;

bool read(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }
i64 number() {
    i64 n;
    if (!read(&n, sizeof n)) std::exit(0);
    return n;
}
Bytes bytes() {
    Bytes all(number());
    if (!read(all.data(), all.size())) std::exit(2);
    return all;
}

// A row-major array of four dimensions.
View view(void* at, i64 a, i64 b, i64 c, i64 d) { return {at, {a, b, c, d}, {b * c * d, c * d, d, 1}}; }

int main() {
    while (true) {
        const Bytes name_bytes = bytes();
        const std::string name(name_bytes.begin(), name_bytes.end());
        std::vector<i64> n(number());
        for (i64& each : n) each = number();
        std::vector<Bytes> in(number());
        for (Bytes& each : in) each = bytes();
        const Kind kind = (Kind)n.at(0);
        const i64 size = size_of(kind);
        constexpr int THREADS = 2;
        Bytes out;
        if (name == "product" || name == "blocks") {  // the latter: as they come back
            const Format& f = *format_named(std::string(in[0].begin(), in[0].end()).c_str());
            const i64 m = n[1], rows = n[2], k = n[3];
            Bytes tiles((rows + 15) / 16 * (k / f.block) * f.tile);
            repack(f, tiles.data(), in[1].data(), rows, k, THREADS);
            if (name == "blocks") {
                out.resize(in[1].size());
                unpack(f, out.data(), tiles.data(), rows, k, THREADS);
            } else {
                out.resize(m * rows * size);
                Product p{&f, tiles.data(), out.data(), in[2].data(), kind, m, rows, k, THREADS};
                multiply(p, n[4] != 0);
            }
        } else if (name == "rms_norm") {
            out.resize(in[0].size());
            rms_norm(kind, out.data(), nullptr, in[0].data(), nullptr, in[1].data(), n[1], n[2], 1e-5f, THREADS);
        } else if (name == "group_norm") {
            out.resize(in[0].size());
            group_norm(kind, out.data(), in[0].data(), in[1].data(), in[2].data(), n[1], n[2], n[3], n[4], 1e-5f,
                       false, THREADS);
        } else if (name == "pairwise") {
            out.resize(in[0].size());
            pairwise((Pairwise)n[1], kind, out.data(), {in[0].data(), n[2]},
                     {in[1].data(), n[2]}, 1, n[2], THREADS);
        } else if (name == "attention") {  // causal
            const i64 batch = n[1], tokens = n[2], keys = n[3], heads = n[4], kv_heads = n[5], dim = n[6];
            out.resize(in[0].size());
            Attention a{};
            a.kind = kind;
            a.out = view(out.data(), batch, tokens, heads, dim);
            a.q = view(in[0].data(), batch, tokens, heads, dim);
            a.k = view(in[1].data(), batch, keys, kv_heads, dim);
            a.v = view(in[2].data(), batch, keys, kv_heads, dim);
            a.batch = batch;
            a.scale = 1 / __builtin_sqrtf((f32)dim);
            a.left = -1;
            a.threads = THREADS;
            attention(a);
        } else if (name == "linear") {
            out.resize(n[1] * n[2] * size);
            linear({kind, out.data(), in[0].data(), in[1].data(), in[2].data(), nullptr, n[1], n[2], n[3], THREADS});
        } else if (name == "convolve") {  // 3 x 3, the same size
            const i64 channels = n[1], height = n[2], width = n[3], outputs = n[4];
            out.resize(outputs * height * width * size);
            convolve({kind, out.data(), in[0].data(), in[1].data(), in[2].data(), nullptr, 1, channels, height, width,
                      outputs, height, width, {3, 3}, {1, 1}, {1, 1}, {1, 1}, THREADS},
                     n[5] != 0);
        } else {
            return 3;
        }
        const i64 length = (i64)out.size();
        std::fwrite(&length, sizeof length, 1, stdout);
        std::fwrite(out.data(), 1, out.size(), stdout);
        std::fflush(stdout);
    }
}
