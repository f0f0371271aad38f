"""
Each kernel of rocm_kernels against torch's own, and against the device's copy bandwidth; matrix
products and convolutions by whoever serves them first, which a column names.

Runs on an NVIDIA GPU through the simulator's cuda flavour (``make hipsim-cuda``), in one
process with torch, round for round in turn; both time themselves with events on their own
stream.  ``--json FILE`` keeps the figures, ``--markdown FILE`` writes the table.

    ROCM_PATH=build/hipsim/cuda python benches/gpu_kernels.py --markdown table.md
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel

from propolis import Tensor
from propolis import capture
from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.dispatch import Call
from propolis.dispatch import DispatchTable
from propolis.dispatch import Handler


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

MIB = 1024 * 1024
ROUNDS = 7
REPEATS = 20
TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "u8": torch.uint8,
}


@dataclass
class Case:
    """
    One kernel on one shape.

    Attributes:
        name: the op and what tells its cases apart.
        nbytes: what it must read and write at least.
        ours: queues one call of ours.
        theirs: queues torch's.
        limit: times torch's time that are aimed at; None for no target.
        graph: both sides replay a graph of the calls: what is judged is a library's choice of
            kernels, not how fast Python asks for it.
    """

    name: str
    nbytes: int
    ours: Callable[[], object]
    theirs: Callable[[], object]
    limit: float | None = 1.1
    graph: bool = False


class Watch(Handler):
    """Learns who serves a call: the plugin and, where it has several ways, which of them."""

    def __init__(self, table: DispatchTable) -> None:
        self.table = table
        self.server = ""

    def run(self, call: Call, proceed: Callable[[], None]) -> None:
        """Ask after it ran."""
        proceed()
        impl = self.table.server(call).impl
        if impl is not None and impl.provenance is not None:
            self.server = f"{impl.provenance.plugin} {impl.variant}".strip()


class Bench:
    """Makes operands on both sides and times calls."""

    def __init__(self) -> None:
        self.device = default_runtime().device("rocm:0")
        self.random = np.random.default_rng(0)

    def pair(self, *shape: int, dtype: str = "f32") -> tuple[Tensor, torch.Tensor]:
        """The same random numbers for us and for torch."""
        values = self.random.standard_normal(shape, np.float32)
        ours = Tensor.from_numpy(values, self.device)
        if dtype != "f32":
            ours = ops.cast(ours, getattr(dtypes, dtype))
        return ours, torch.from_numpy(values).cuda().to(TORCH[dtype])

    def out(self, *shape: int, dtype: str = "f32") -> tuple[Tensor, torch.Tensor]:
        """Uninitialised destinations."""
        ours = self.device.empty(shape, getattr(dtypes, dtype))
        return ours, torch.empty(shape, dtype=TORCH[dtype], device="cuda")

    def ours(self, call: Callable[[], object], repeats: int) -> float:
        """Microseconds a call of ours takes on the device."""
        start, stop = self.device.event(timing=True), self.device.event(timing=True)
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return stop.elapsed(start) * 1e6 / repeats

    @staticmethod
    def theirs(call: Callable[[], object], repeats: int) -> float:
        """Microseconds a call of torch's takes."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e3 / repeats

    def replay(self, call: Callable[[], object]) -> Callable[[], object]:
        """What replays a graph of several calls of ours."""
        with capture(self.device) as graph:
            for _ in range(REPEATS):
                call()
        graph.replay()
        return graph.replay

    def server(self, case: Case) -> str:
        """The plugin that takes the case's call of ours, which is the first of it."""
        watch = Watch(DispatchTable.of(self.device))
        with watch.table.intercept(watch):
            case.ours()
        return watch.server

    def measure(self, case: Case) -> tuple[float, float]:
        """Medians of both, in microseconds, taken in turn."""
        case.ours()
        case.theirs()
        ours, theirs, repeats = case.ours, case.theirs, REPEATS
        if case.graph:
            ours, theirs, repeats = self.replay(case.ours), replay(case.theirs), 1
        rounds = [(self.ours(ours, repeats), self.theirs(theirs, repeats)) for _ in range(ROUNDS)]
        if case.graph:
            rounds = [(mine / REPEATS, other / REPEATS) for mine, other in rounds]
        return (
            statistics.median(ours for ours, _ in rounds),
            statistics.median(theirs for _, theirs in rounds),
        )


def replay(call: Callable[[], object]) -> Callable[[], object]:
    """What replays a graph of several calls of torch's."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def elementwise(b: Bench) -> Iterator[Case]:
    """Unary, binary, ternary, casts and copies, of 64 MiB a tensor."""
    for dtype in ("f32", "f16", "bf16"):
        n = 64 * MIB // (4 if dtype == "f32" else 2)
        x, tx = b.pair(n, dtype=dtype)
        y, ty = b.pair(n, dtype=dtype)
        out, tout = b.out(n, dtype=dtype)
        two, three = 128 * MIB, 192 * MIB
        unary: dict[str, Callable[..., Any]] = {
            "exp": torch.exp,
            "neg": torch.neg,
            "silu": lambda t, out: torch.ops.aten.silu.out(t, out=out),
            "gelu": lambda t, out: torch.ops.aten.gelu.out(t, approximate="tanh", out=out),
            "sqrt": torch.sqrt,
        }
        for name, theirs in unary.items():
            op = getattr(ops, name)
            yield Case(
                f"{name} {dtype}",
                two,
                lambda op=op, out=out, x=x: op.into(out, x),
                lambda f=theirs, o=tout, t=tx: f(t, out=o),
            )
        for name, theirs in {"add": torch.add, "mul": torch.mul, "maximum": torch.maximum}.items():
            op = getattr(ops, name)
            yield Case(
                f"{name} {dtype}",
                three,
                lambda op=op, out=out, x=x, y=y: op.into(out, x, y),
                lambda f=theirs, o=tout, t=tx, u=ty: f(t, u, out=o),
            )
        yield Case(
            f"copy {dtype}",
            two,
            lambda out=out, x=x: ops.copy.into(out, x),
            lambda o=tout, t=tx: o.copy_(t),
        )
        row, trow = b.pair(1024, dtype=dtype)
        wide, wide_out = x.reshape(-1, 1024), out.reshape(-1, 1024)
        t_wide, t_wide_out = tx.view(-1, 1024), tout.view(-1, 1024)
        yield Case(
            f"add a row {dtype}",
            two,
            lambda o=wide_out, x=wide, r=row: ops.add.into(o, x, r),
            lambda o=t_wide_out, t=t_wide, r=trow: torch.add(t, r, out=o),
        )
        turned, t_turned = wide.permute(1, 0), t_wide.t()
        t_flat_out = tout.view(1024, -1)
        flat_out = out.reshape(1024, -1)
        yield Case(
            f"copy transposed {dtype}",
            two,
            lambda o=flat_out, x=turned: ops.copy.into(o, x),
            lambda o=t_flat_out, t=t_turned: o.copy_(t),
        )
    n = 16 * MIB
    for a, c in (("f32", "f16"), ("f16", "f32"), ("f32", "bf16"), ("bf16", "f32")):
        x, tx = b.pair(n, dtype=a)
        out, tout = b.out(n, dtype=c)
        yield Case(
            f"cast {a} to {c}",
            6 * n,
            lambda out=out, x=x, c=c: ops.cast.into(out, x, getattr(dtypes, c)),
            lambda o=tout, t=tx: o.copy_(t),
        )
    x, tx = b.pair(n)
    y, ty = b.pair(n)
    out, tout = b.out(n)
    condition = ops.gt(x, y)
    t_condition = tx > ty
    yield Case(
        "where f32",
        13 * n,
        lambda: ops.where.into(out, condition, x, y),
        lambda: torch.where(t_condition, tx, ty, out=tout),
    )


def rows(b: Bench) -> Iterator[Case]:
    """Reductions, softmax and norms of 64 MiB."""
    nn = torch.nn.functional
    for dtype in ("f32", "f16"):
        size = 4 if dtype == "f32" else 2
        for width in (1024, 4096, 32768):
            height = 64 * MIB // size // width
            x, tx = b.pair(height, width, dtype=dtype)
            out, tout = b.out(height, width, dtype=dtype)
            w, tw = b.pair(width, dtype=dtype)
            r, tr = b.out(height, dtype=dtype)
            tag = f"{dtype} {height}x{width}"
            one, two = 64 * MIB, 128 * MIB
            yield Case(
                f"sum of rows {tag}",
                one,
                lambda r=r, x=x: ops.sum.into(r, x, -1),
                lambda r=tr, x=tx: torch.sum(x, -1, out=r),
            )
            yield Case(
                f"max of rows {tag}",
                one,
                lambda r=r, x=x: ops.max.into(r, x, -1),
                lambda r=tr, x=tx: torch.amax(x, -1, out=r),
            )
            yield Case(
                f"softmax {tag}",
                two,
                lambda o=out, x=x: ops.softmax.into(o, x, -1),
                lambda o=tout, x=tx: torch.softmax(x, -1, out=o),
            )
            yield Case(
                f"rms_norm {tag}",
                two,
                lambda o=out, x=x, w=w: ops.rms_norm.into(o, x, w, 1e-5),
                lambda x=tx, w=tw, n=width: nn.rms_norm(x, (n,), w, 1e-5),
            )
            yield Case(
                f"layer_norm {tag}",
                two,
                lambda o=out, x=x, w=w: ops.layer_norm.into(o, x, w, w, 1e-5),
                lambda x=tx, w=tw, n=width: nn.layer_norm(x, (n,), w, w, 1e-5),
            )
        n = 64 * MIB // size
        x, tx = b.pair(n // 4096, 4096, dtype=dtype)
        column, tcolumn = b.out(4096, dtype=dtype)
        everything, teverything = b.out(dtype=dtype)
        yield Case(
            f"sum of columns {dtype}",
            64 * MIB,
            lambda c=column, x=x: ops.sum.into(c, x, 0),
            lambda c=tcolumn, x=tx: torch.sum(x, 0, out=c),
        )
        yield Case(
            f"sum of all {dtype}",
            64 * MIB,
            lambda c=everything, x=x: ops.sum.into(c, x),
            lambda c=teverything, x=tx: torch.sum(x, (0, 1), out=c),
        )
        index, tindex = b.device.empty((n // 4096,), ops.argmax(x).dtype), None
        yield Case(
            f"argmax of rows {dtype}",
            64 * MIB,
            lambda i=index, x=x: ops.argmax.into(i, x),
            lambda x=tx, _=tindex: torch.argmax(x, -1),
        )


# Torch's own, and what it takes from libraries.
BACKENDS = (
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)


def attended(q: torch.Tensor, backend: SDPBackend, *, causal: bool) -> torch.Tensor:
    """Torch's attention by one of those."""
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)


def products(b: Bench) -> Iterator[Case]:
    """Mat-vec of plain weights, and attention."""
    for dtype in ("f32", "f16"):
        size = 4 if dtype == "f32" else 2
        m, n, k = 1, 8192, 8192
        x, tx = b.pair(m, k, dtype=dtype)
        w, tw = b.pair(n, k, dtype=dtype)
        out, tout = b.out(m, n, dtype=dtype)
        yield Case(
            f"linear {dtype} {m}x{n}x{k}",
            size * (m * k + n * k + m * n),
            lambda o=out, x=x, w=w: ops.linear.into(o, x, w),
            lambda o=tout, x=tx, w=tw: torch.mm(x, w.t(), out=o),
            limit=None,
        )
    for dtype, tokens, heads, dim, causal in (
        ("f32", 1024, 16, 64, True),
        ("f16", 1024, 16, 64, True),
        ("f16", 4096, 16, 64, True),
        ("f16", 16384, 16, 64, True),
        ("bf16", 4096, 32, 128, True),
        ("f16", 4096, 8, 256, True),
        ("f16", 4096, 16, 40, False),  # of Stable Diffusion 1.5, two images at a time
        ("f16", 1024, 16, 80, False),
    ):
        q, tq = b.pair(1, tokens, heads, dim, dtype=dtype)
        out, _ = b.out(1, tokens, heads, dim, dtype=dtype)
        tq = tq.transpose(1, 2)
        name = f"attention {dtype} {'causal ' * causal}{tokens} tokens, {heads} heads of {dim}"
        for backend in BACKENDS if dtype != "f32" else BACKENDS[:1]:
            yield Case(
                f"{name}, {backend.name.removesuffix('_ATTENTION').lower()}",
                (4 if dtype == "f32" else 2) * 4 * tokens * heads * dim,
                lambda o=out, q=q, c=causal: ops.attention.into(o, q, q, q, causal=c),
                lambda q=tq, c=causal, b=backend: attended(q, b, causal=c),
                limit=1.3 if backend is SDPBackend.FLASH_ATTENTION else None,
                graph=True,
            )


def decoding(b: Bench) -> Iterator[Case]:
    """Rows by a vocabulary of weights in each block format; torch's is a copy of as much."""
    n, k = 128256, 4096
    pairs = [(b.pair(rows, k)[0], b.out(rows, n)[0]) for rows in (1, 2, 4, 8, 16)]
    for dtype in sorted(dtypes.BLOCKS, key=str):
        nbytes = n * k // dtype.block_size * dtype.block_bytes
        blocks = np.resize(np.frombuffer(b.random.bytes(MIB), np.uint8), nbytes)
        w = Tensor.from_blocks(blocks, dtype, (n, k), b.device)
        halves = torch.empty((2, nbytes // 2), dtype=torch.uint8, device="cuda")
        for x, out in pairs:
            yield Case(
                f"qmatmul {dtype} {x.shape[0]}x{n}x{k}",
                nbytes,
                lambda o=out, x=x, w=w: ops.qmatmul.into(o, x, w),
                lambda h=halves: h[0].copy_(h[1]),
                limit=1 / 0.85,
            )


def few(b: Bench) -> Iterator[Case]:
    """Few rows by plain weights, too large for caches; of 8 bits, torch's is a copy of as much."""
    for dtype in ("f16", "bf16", "f8e4m3"):
        plain = dtype in TORCH
        size = 2 if plain else 1
        for n, k in ((28672, 4096), (4096, 14336)):
            w, tw = b.pair(n, k, dtype=dtype if plain else "f32")
            if not plain:
                w, tw = ops.cast(w, dtypes.f8e4m3), torch.empty((2, n * k // 8), device="cuda")
            for m in (1, 2, 4, 8, 16, 32, 64):
                x, tx = b.pair(m, k, dtype=dtype if plain else "f32")
                x, out = ops.cast(x, w.dtype), b.device.empty((m, n), w.dtype)
                yield Case(
                    f"linear {dtype} {m}x{n}x{k}",
                    size * (m * k + n * k + m * n),
                    lambda o=out, x=x, w=w: ops.linear.into(o, x, w),
                    (lambda x=tx, w=tw: torch.mm(x, w.t()))
                    if plain
                    else lambda h=tw: h[0].copy_(h[1]),
                    limit=1.1 if plain else 1 / 0.85,
                    graph=True,
                )


def matrices(b: Bench) -> Iterator[Case]:
    """Square products, which vendors' libraries do."""
    for dtype in ("f32", "f16", "bf16"):
        size = 4 if dtype == "f32" else 2
        for n in (1024, 2048, 4096):
            x, tx = b.pair(n, n, dtype=dtype)
            y, ty = b.pair(n, n, dtype=dtype)
            out, tout = b.out(n, n, dtype=dtype)
            yield Case(
                f"matmul {dtype} {n}",
                3 * size * n * n,
                lambda o=out, x=x, y=y: ops.matmul.into(o, x, y),
                lambda o=tout, x=tx, y=ty: torch.mm(x, y, out=o),
                graph=True,
            )


# Images of two samples of Stable Diffusion 1.5, and of its VAE's decoder: in, out, height, taps,
# stride.
CONVOLUTIONS = (
    (4, 320, 64, 3, 1),
    (320, 320, 64, 3, 1),
    (320, 320, 64, 3, 2),
    (960, 320, 64, 3, 1),
    (640, 640, 32, 3, 1),
    (1280, 1280, 16, 3, 1),
    (2560, 1280, 8, 3, 1),
    (320, 320, 64, 1, 1),
    (512, 512, 128, 3, 1),
    (128, 128, 512, 3, 1),
)


def convolutions(b: Bench) -> Iterator[Case]:
    """The convolutions of a picture of 512 x 512; of f16 torch's with channels last, too."""
    nn = torch.nn.functional
    for dtype in ("f16", "f32"):
        size = 4 if dtype == "f32" else 2
        for inputs, outputs, side, taps, stride in CONVOLUTIONS:
            images = 1 if side > 64 else 2
            x, tx = b.pair(images, inputs, side, side, dtype=dtype)
            w, tw = b.pair(outputs, inputs, taps, taps, dtype=dtype)
            bias, tbias = b.pair(outputs, dtype=dtype)
            out, _ = b.out(images, outputs, side // stride, side // stride, dtype=dtype)
            pad = taps // 2
            w = DispatchTable.of(b.device).prepare(ops.conv2d, ops.conv2d.key(w.dtype), w)
            name = f"conv2d {dtype} {inputs} to {outputs}, {side}x{side}, {taps}x{taps} / {stride}"
            for last in (False, True) if dtype == "f16" else (False,):
                form = torch.channels_last if last else torch.contiguous_format
                theirs = [t.contiguous(memory_format=form) for t in (tx, tw)]
                yield Case(
                    f"{name}, channels last" if last else name,
                    size * (x.numel + w.numel + out.numel),
                    lambda o=out, x=x, w=w, c=bias, s=stride, p=pad: ops.conv2d.into(
                        o, x, w, c, stride=s, padding=p
                    ),
                    lambda t=theirs, c=tbias, s=stride, p=pad: nn.conv2d(*t, c, s, p),
                    limit=1.5 if last else 1.2,
                    graph=True,
                )


def main() -> int:
    """Measure, print, and say which calls miss their target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    arguments = parser.parse_args()

    torch.backends.cudnn.benchmark = True  # its fastest way
    torch.backends.cudnn.allow_tf32 = False  # f32 is f32, on both sides
    bench = Bench()
    size = 256 * MIB
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    bandwidth = (
        2
        * size
        / statistics.median(
            bench.theirs(lambda: target.copy_(source), REPEATS) for _ in range(ROUNDS)
        )
    )
    lines = [
        f"copy bandwidth (256 MiB, read and written): {bandwidth / 1e6:.2f} TB/s",
        "",
        "| call | served by | ours, us | torch, us | ours / torch | of copy bandwidth | target |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    print("\n".join(lines), flush=True)
    results: list[dict[str, Any]] = []
    missed = 0
    for make in (elementwise, rows, products, few, decoding, matrices, convolutions):
        for case in make(bench):
            if not case.name.startswith(arguments.only):
                continue
            server = bench.server(case)
            ours, theirs = bench.measure(case)
            share = case.nbytes / ours / bandwidth
            met = case.limit is None or ours <= case.limit * theirs or share >= 0.85
            missed += not met
            verdict = ("met" if met else "missed") if case.limit else ""
            line = (
                f"| {case.name} | {server} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} "
                f"| {share:.0%} | {verdict} |"
            )
            print(line, flush=True)
            lines.append(line)
            results.append(
                {"name": case.name, "ours_us": ours, "torch_us": theirs, "bandwidth": share}
            )
    lines += ["", f"{missed} calls miss their target."]
    print(lines[-1])
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")
    if arguments.json:
        report = {"copy_bytes_per_us": bandwidth, "kernels": results}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
