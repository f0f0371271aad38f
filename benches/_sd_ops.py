"""
Every op of one UNet step: ours against torch's, at the shapes that the step has.

The shapes are those of diffusers' own model, run without memory (torch's meta device).
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from diffusers import UNet2DConditionModel
from torch.overrides import TorchFunctionMode

from propolis import Tensor
from propolis import ops


if TYPE_CHECKING:
    from collections.abc import Callable


class Call(NamedTuple):
    """An op of ours, the shapes of its tensors, and its attributes."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    attributes: tuple[Any, ...] = ()

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, shape)) for shape in self.shapes[:3])
        return " ".join([self.op, shapes, *map(str, self.attributes)])


class Recorder(TorchFunctionMode):
    """Counts the calls of the functions that have an op of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Call] = Counter()
        self._normed: tuple[Any, Call] | None = None

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` and count it."""
        result = func(*args, **(kwargs or {}))
        call = self._read(func, args, kwargs or {})
        if call is None:
            return result
        if call.op == "silu" and self._normed is not None and self._normed[0] is args[0]:
            self.calls[self._normed[1]] -= 1
            call = self._normed[1]._replace(op="group_norm_silu")
        self._normed = (result, call) if call.op == "group_norm" else None
        self.calls[call] += 1
        return result

    def _read(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        name = getattr(func, "__name__", "")
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        shapes = tuple(tuple(t.shape) for t in tensors)
        if name == "conv2d":
            return Call(name, shapes, (*args[3][:1], *args[4][:1]))
        if name in ("linear", "layer_norm", "silu"):
            return Call(name, shapes)
        if name == "gelu":
            return Call("gelu_erf", shapes)
        if name == "group_norm":
            return Call(name, shapes, (args[1],))
        if name == "scaled_dot_product_attention":
            # Ours are (batch, tokens, heads, head_dim).
            return Call("attention", tuple((b, t, h, d) for b, h, t, d in shapes[:3]))
        if name == "interpolate":
            b, c, h, w = shapes[0]
            return Call("upsample_nearest2d", ((b, c, h, w),), ((2 * h, 2 * w),))
        if name == "cat":
            parts = tuple(tuple(t.shape) for t in args[0])
            return Call("cat", parts) if len(parts[0]) == 4 else None
        if name in ("add", "__add__", "mul", "__mul__") and len(shapes) == 2:
            return Call(name.strip("_"), shapes) if len(shapes[0]) > 2 else None
        return None


def recorded(config: dict[str, Any], batch: int, size: int, tokens: int) -> Counter[Call]:
    """The ops of one step of a model, by how often they are called."""
    with torch.device("meta"), torch.inference_mode():
        model = UNet2DConditionModel.from_config(config).eval()
        sample = torch.empty(batch, config["in_channels"], size, size)
        context = torch.empty(batch, tokens, config["cross_attention_dim"])
        with Recorder() as recorder:
            model(sample, torch.empty(batch), context)
    return +recorder.calls


def contenders(call: Call) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Ours and torch's, on the same random numbers, and checked to agree."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in call.shapes]
    if call.op in ("conv2d", "linear"):
        arrays[1] *= np.float32(np.prod(call.shapes[1][1:]) ** -0.5)
    mine = [Tensor.from_numpy(a) for a in arrays]
    theirs = [torch.from_numpy(a) for a in arrays]
    ours, peer = _functions(call, mine, theirs)
    with torch.inference_mode():
        np.testing.assert_allclose(ours().numpy(), peer().numpy(), rtol=1e-3, atol=1e-4)
    return ours, peer


def _functions(
    call: Call, x: list[Tensor], t: list[torch.Tensor]
) -> tuple[Callable[[], Tensor], Callable[[], torch.Tensor]]:
    at = call.attributes
    match call.op:
        case "conv2d":
            return (
                lambda: ops.conv2d(*x, stride=at[0], padding=at[1]),
                lambda: F.conv2d(*t, stride=at[0], padding=at[1]),
            )
        case "group_norm_silu":
            return (
                lambda: ops.group_norm_silu(*x, at[0]),
                lambda: F.silu(F.group_norm(t[0], at[0], *t[1:])),
            )
        case "group_norm":
            return (
                lambda: ops.group_norm(*x, at[0]),
                lambda: F.group_norm(t[0], at[0], *t[1:]),
            )
        case "layer_norm":
            return (
                lambda: ops.layer_norm(*x),
                lambda: F.layer_norm(t[0], t[1].shape, *t[1:]),
            )
        case "attention":
            return (
                lambda: ops.attention(*x),
                lambda: F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in t)).transpose(
                    1, 2
                ),
            )
        case "upsample_nearest2d":
            return (
                lambda: ops.upsample_nearest2d(*x, at[0]),
                lambda: F.interpolate(t[0], scale_factor=2.0, mode="nearest"),
            )
        case "cat":
            return lambda: ops.cat(x, 1), lambda: torch.cat(t, 1)
        case "gelu_erf":
            return lambda: ops.gelu_erf(*x), lambda: F.gelu(*t)
    own = getattr(ops, call.op)
    peer = getattr(F, call.op, None) or getattr(torch, call.op)
    return lambda: own(*x), lambda: peer(*t)


class Times(NamedTuple):
    """The least of several runs, in seconds: on the wall, and of all cores together."""

    wall: float
    cpu: float


def timed(functions: tuple[Callable[[], Any], ...], rounds: int) -> list[Times]:
    """Each function's best of ``rounds``, one after the other in each round."""
    best = [Times(9e9, 9e9)] * len(functions)
    with torch.inference_mode():
        for _ in range(rounds):
            for i, function in enumerate(functions):
                wall, cpu = time.perf_counter(), time.process_time()
                function()
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                best[i] = Times(min(best[i].wall, wall), min(best[i].cpu, cpu))
    return best


def table(calls: Counter[Call], rounds: int, only: str) -> None:
    """Print each op at each shape, and what a step comes to, by op and in all."""
    totals: dict[str, np.ndarray] = {}
    print(f"{'calls':>5} {'ours ms':>9} {'torch ms':>9} ratio  cpu ratio  op and shapes, once")
    for call, count in sorted(calls.items()):
        if only and only not in str(call):
            continue
        times = np.array(timed(contenders(call), rounds))  # (contender, clock)
        totals[call.op] = totals.get(call.op, 0) + count * times
        ratio = times[0] / times[1]
        ours, peer = times[:, 0] * 1e3
        print(f"{count:5} {ours:9.2f} {peer:9.2f} {ratio[0]:5.2f} {ratio[1]:10.2f}  {call}")
    totals["all"] = sum(totals.values(), start=np.zeros((2, 2)))
    print(f"\n{'':15} {'ours s':>9} {'torch s':>9} ratio  {'cpu s':>9} {'torch s':>9} ratio")
    for op, ((wall, cpu), (peer_wall, peer_cpu)) in totals.items():
        print(
            f"{op:18} {wall:6.3f} {peer_wall:9.3f} {wall / peer_wall:5.2f}  "
            f"{cpu:9.3f} {peer_cpu:9.3f} {cpu / peer_cpu:5.2f}"
        )
