from __future__ import annotations

import threading

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import DTypeError
from propolis.errors import FallbackError
from propolis.errors import NoImplementationError
from propolis.errors import PluginError


def count(*shape):
    """0, 1, 2 ... in that shape."""
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def on(device, array):
    """A tensor with those elements there."""
    return Tensor.from_numpy(array, device)


def declines(reason):
    """A supports() that never takes a call."""
    return lambda *_args, **_kwargs: reason


# -- binding -------------------------------------------------------------------


def test_the_plugins_own_function_is_bound(fakes, cpu):
    """Where nobody could take over, nothing stands between caller and function."""
    impl = fakes.impl(device="cpu")
    table = DispatchTable(cpu, [impl], cpu)
    assert table.bind(ops.add, dtypes.f32) is impl.fn
    assert table.bound["add"][dtypes.f32] is impl.fn
    assert table.bind(ops.add, dtypes.f32) is impl.fn


def test_a_key_is_bound_once(fakes):
    """The second call does not resolve again."""
    asked = []

    def supports(a, b, /):
        asked.append(a.shape)

    device = fakes.device(fakes.impl(supports=supports))
    x = on(device, count(3))
    assert ops.add(x, x).numpy().tolist() == [0, 2, 4]
    run = device.table.bound["add"][dtypes.f32]
    ops.add(x, x)
    assert device.table.bound["add"][dtypes.f32] is run
    assert asked == [(3,), (3,)]


def test_nobody_serves(fakes):
    """The error has every candidate's reason, here and on the CPU, and the command to type."""
    device = fakes.device(fakes.impl(dtypes={dtypes.f16}))
    device.table = DispatchTable(device, [fakes.impl(dtypes={dtypes.f16})], device)
    message = (
        r"add \(f32\) has no implementation on fake:0: fake \(dist-fake 1\.0\): a is f32; it takes "
        r"f16; `propolis explain add` shows"
    )
    with pytest.raises(NoImplementationError, match=message):
        device.table.bind(ops.add, dtypes.f32)


def test_nobody_serves_on_the_cpu_either(fakes, cpu):
    """The CPU's reasons are told apart from the device's."""
    device = fakes.device()
    cpu.table = DispatchTable(cpu, [], cpu)
    with pytest.raises(NoImplementationError, match=r"for fake:0; on the cpu: no plugin implem"):
        ops.add(on(device, count(2)), on(device, count(2)))


def test_a_dtype_the_op_does_not_allow(fakes):
    """The op's own error, whoever serves it."""
    with pytest.raises(DTypeError, match="softmax: x is i32"):
        fakes.device().table.trace(ops.softmax, dtypes.i32)


def test_binding_from_many_threads(fakes):
    """Threads that meet an unbound op at once all get a working function."""
    device = fakes.device(fakes.impl(supports=declines(None)))
    x = on(device, count(4))
    start = threading.Barrier(8)
    results = []

    def work():
        start.wait()
        for _ in range(20):
            device.table.bound.clear()
            device.table.bind(ops.add, dtypes.f32)(out, x, x)
        results.append(out.numpy().tolist())

    out = device.empty((4,), dtypes.f32)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0, 2, 4, 6]] * 8


# -- the ladder ----------------------------------------------------------------


def test_the_next_candidate_takes_what_the_winner_declines(fakes):
    """On the same device, call by call."""
    log = []

    def kernel(name):
        def run(out, a, b, /):
            log.append(name)
            fakes.view(out)[...] = fakes.view(a) + fakes.view(b)

        return run

    device = fakes.device(
        fakes.impl(fn=kernel("slow"), plugin="slow"),
        fakes.impl(
            fn=kernel("fast"),
            plugin="fast",
            priority=100,
            supports=lambda a, _b: None if a.shape[0] % 2 == 0 else "odd length",
        ),
    )
    for length in (4, 3, 2):
        x = on(device, count(length))
        assert ops.add(x, x).numpy().tolist() == (2 * count(length)).tolist()
    assert log == ["fast", "slow", "fast"]
    assert device.table.fallbacks.tallies == {}


def test_supports_gets_the_ops_arguments(fakes):
    """Without the destination; with keywords as the caller gave them."""
    seen = []

    def supports(x, /, dim=-1):
        seen.append((x.shape, dim))
        return "no"

    device = fakes.device(fakes.impl("softmax", supports=supports))
    ops.softmax(on(device, count(2, 3)), dim=0)
    assert seen == [((2, 3), 0)]

    def supports_append(cache, x, positions, /):
        seen.append(cache.shape)
        return "no"

    device = fakes.device(fakes.impl("kv_append", supports=supports_append))
    positions = on(device, np.zeros((1, 1), np.int32))
    ops.kv_append(on(device, count(1, 4, 1, 2)), on(device, count(1, 1, 1, 2)), positions)
    assert seen[1:] == [(1, 4, 1, 2)]


def test_all_decline_without_a_cpu_that_serves(fakes, cpu):
    """Each candidate's reason is in the error."""
    cpu.table = DispatchTable(
        cpu, [fakes.impl(device="cpu", supports=declines("not today"), dtypes={dtypes.f16})], cpu
    )
    x = cpu.empty((2,), dtypes.f16)
    with pytest.raises(
        NoImplementationError,
        match=r"add: every candidate on cpu declined: fake \(dist-fake 1\.0\): not today",
    ):
        ops.add(x, x)


@pytest.mark.parametrize("answer", [True, False, 0])
def test_supports_that_answers_yes_or_no(fakes, answer):
    """True is no reason: the plugin's mistake is named instead of guessed at."""
    device = fakes.device(fakes.impl(supports=declines(answer)), policy="error")
    x = on(device, count(2))
    with pytest.raises(
        FallbackError, match=rf"supports\(\) of fake .* returned {answer}; .*None"
    ) as caught:
        ops.add(x, x)
    assert isinstance(caught.value.__cause__, PluginError)


def test_what_an_implementation_raises_is_seen(fakes):
    """Where nobody takes over, an error of the function is the caller's to see, unchanged."""

    def broken(out, a, b, /):
        msg = "kernel failed"
        raise RuntimeError(msg)

    for fields in ({}, {"supports": declines(None)}):
        device = fakes.device(fakes.impl(fn=broken, **fields))
        device.table = DispatchTable(device, [fakes.impl(fn=broken, **fields)], device)
        x = on(device, count(2))
        with pytest.raises(RuntimeError, match="kernel failed"):
            ops.add(x, x)


# -- inputs that must be contiguous --------------------------------------------


def test_strided_inputs_are_copied_and_counted(fakes):
    """A function that takes no strides gets none, and the placement says what it cost."""
    seen = []

    def dense(out, a, b, /):
        seen.append((a.is_contiguous, b.is_contiguous))
        fakes.view(out)[...] = fakes.view(a) + fakes.view(b)

    device = fakes.device(fakes.impl(fn=dense, strided=False), fakes.copy)
    x = on(device, count(2, 3))
    assert ops.add(x, x).numpy().tolist() == (2 * count(2, 3)).tolist()
    assert device.table.placement.strided_copies == 0
    result = ops.add(x.transpose(0, 1), x.transpose(0, 1))
    assert result.numpy().tolist() == (2 * count(2, 3).T).tolist()
    assert seen == [(True, True), (True, True)]
    assert device.table.placement.strided_copies == 2


def test_strided_keyword_inputs_are_copied_too(fakes, cpu):
    """How the caller passes a tensor makes no difference."""
    seen = []

    def linear(out, x, w, /, bias=None):
        seen.append(bias.is_contiguous)
        out.array[...] = x.array @ w.array.T + bias.array

    impls = [fakes.impl("linear", linear, device="cpu", strided=False)]
    impls += cpu.table._impls["copy"]
    cpu.table = DispatchTable(cpu, impls, cpu)
    x, w, wide = on(cpu, count(2, 3)), on(cpu, count(4, 3)), on(cpu, count(4, 2))
    bias = wide.narrow(1, 1, 1).squeeze(1)
    expected = (count(2, 3) @ count(4, 3).T + count(4, 2)[:, 1]).tolist()
    assert ops.linear(x, w, bias).numpy().tolist() == expected
    assert ops.linear(x, w, bias=bias).numpy().tolist() == expected
    assert seen == [True, True]
    assert cpu.table.placement.strided_copies == 2


def test_a_strided_destination_is_no_ones_copy(fakes):
    """A function that takes no strides cannot write into a strided cache: the next rung does."""

    def append(cache, x, positions, /):
        pytest.fail("it must not be called with a strided cache")

    device = fakes.device(fakes.impl("kv_append", append, strided=False))
    cache = on(device, np.zeros((1, 2, 4, 3), np.float32)).permute(0, 2, 1, 3)
    x = on(device, count(1, 1, 2, 3) + 1)
    ops.kv_append(cache, x, on(device, np.array([[2]], np.int32)))
    (((op, reason), _),) = device.table.fallbacks.tallies.items()
    assert op == "kv_append"
    assert "no strided destination" in reason
    truth = np.zeros((1, 4, 2, 3), np.float32)
    truth[0, 2] = count(2, 3) + 1
    np.testing.assert_array_equal(cache.to(device.table.cpu).numpy(), truth)


# -- the CPU rung --------------------------------------------------------------


def test_ops_that_a_device_lacks_run_on_the_cpu(fakes):
    """Removing an op from a device's table costs copies, a log line and a tally: never silence."""
    device = fakes.device(policy="warn")
    a, b = on(device, count(2, 3)), on(device, count(3))
    device.memory.copied_in.clear()
    with capture_logs() as logs:
        results = [ops.add(a, b) for _ in range(3)]
    for result in results:
        assert result.device is device
        np.testing.assert_array_equal(result.numpy(), count(2, 3) + count(3))
    reason = "no plugin implements add for fake:0"
    assert logs == [
        {
            "event": "op.fallback",
            "log_level": "warning",
            "op": "add",
            "device": "fake:0",
            "to": "cpu",
            "reason": reason,
        }
    ]
    tally = device.table.fallbacks.tallies["add", reason]
    assert (tally.calls, tally.nbytes) == (3, 3 * (24 + 12 + 24))
    assert device.memory.copied_in == [24] * 3


def test_policy_allow_counts_in_silence(fakes):
    """No log line, but the tally and the placement line stay."""
    device = fakes.device(policy="allow")
    x = on(device, count(2))
    with capture_logs() as logs:
        ops.add(x, x)
    assert logs == []
    assert [t.calls for t in device.table.fallbacks.tallies.values()] == [1]


def test_policy_error_refuses(fakes):
    """Nothing runs, nothing is copied, and the error says who, where, why and what to do."""
    device = fakes.device(policy="error")
    x = on(device, count(2))
    device.memory.copied_out.clear()
    with pytest.raises(
        FallbackError,
        match=r"add: would run on the cpu instead of fake:0 \(no plugin implements add for fake:0\)"
        r".*fallback is 'error': install .* 'warn' or 'allow'",
    ):
        ops.add(x, x)
    assert device.memory.copied_out == []
    assert device.table.fallbacks.tallies == {}


def test_dynamic_reasons_are_tallied_apart(fakes):
    """One log line for each reason, not for each call."""
    device = fakes.device(fakes.impl(supports=lambda a, _b: f"rank {len(a.shape)}"), policy="warn")
    one, two = on(device, count(2)), on(device, count(2, 2))
    with capture_logs() as logs:
        for x in (one, two, one):
            ops.add(x, x)
    reasons = ["fake (dist-fake 1.0): rank 1", "fake (dist-fake 1.0): rank 2"]
    assert [line["reason"] for line in logs] == reasons
    assert [t.calls for t in device.table.fallbacks.tallies.values()] == [2, 1]


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 1),
        lambda t: t.narrow(1, 1, 2),
        lambda t: t.narrow(0, 2, 2),
        lambda t: t.narrow(0, 1, 0),
        lambda t: t.narrow(0, 3, 1).broadcast_to(2, 3),
        lambda t: t.reshape(-1).narrow(0, 5, 1).squeeze(0),
    ],
    ids=["transposed", "columns", "rows", "nothing", "broadcast", "scalar"],
)
def test_strided_inputs_reach_the_cpu(fakes, cpu, view):
    """Only the bytes that a view reaches are copied, and strides and offset are kept."""
    device = fakes.device()
    there = view(on(device, count(4, 3)))
    truth = view(on(cpu, count(4, 3))).numpy()
    device.memory.copied_out.clear()
    result = ops.mul(there, there).to(cpu)
    np.testing.assert_array_equal(result.numpy(), truth * truth)
    reach = 4 * (there.layout.extent - there.layout.offset)
    assert device.memory.copied_out[:2] == [reach, reach]


def test_a_mutated_tensor_comes_back(fakes, cpu):
    """Destination first: a strided, offset cache is written in place; its neighbours stay."""
    device = fakes.device()
    whole = on(device, count(2, 2, 5, 3))
    cache = whole.permute(0, 2, 1, 3).narrow(1, 1, 4)
    x = on(device, -1 - count(2, 2, 2, 3))
    positions = on(device, np.array([[3, 0], [1, 2]], np.int64))
    assert ops.kv_append(cache, x, positions) is cache
    truth = count(2, 2, 5, 3)
    window = truth.transpose(0, 2, 1, 3)[:, 1:]
    for b in range(2):
        for t in range(2):
            window[b, positions.numpy()[b, t]] = x.numpy()[b, t]
    np.testing.assert_array_equal(whole.numpy(), truth)


def test_block_formats_reach_the_cpu(fakes, cpu):
    """Windows of block formats are whole blocks, from the middle of a tensor too."""
    device = fakes.device()
    raw = np.random.default_rng(0).integers(0, 60, 4 * 2 * 34).astype(np.uint8)
    w = Tensor.from_blocks(raw, dtypes.q8_0, (4, 64), cpu)
    there = w.to(device).narrow(0, 1, 2).narrow(1, 32, 32)
    expected = ops.dequantize(w.narrow(0, 1, 2).narrow(1, 32, 32)).numpy()
    np.testing.assert_array_equal(ops.dequantize(there).to(cpu).numpy(), expected)


def test_keyword_tensors_reach_the_cpu(fakes, cpu):
    """A tensor passed by keyword is mirrored as any other."""
    device = fakes.device()
    x, w, b = (on(device, a) for a in (count(2, 3), count(4, 3), count(4)))
    expected = count(2, 3) @ count(4, 3).T + count(4)
    np.testing.assert_array_equal(ops.linear(x, w, bias=b).to(cpu).numpy(), expected)


def test_large_results_come_back_whole(fakes, cpu):
    """The CPU's pooled buffers are larger than the tensor: only the tensor's bytes go back."""
    device = fakes.device()
    x = on(device, count(20_001))
    result = ops.add(x, x)
    np.testing.assert_array_equal(result.numpy(), 2 * count(20_001))


def test_a_call_that_fails_on_the_cpu_leaves_the_destination(fakes):
    """Out-of-range positions are the CPU's error, and nothing is written back."""
    from propolis.errors import OpError

    device = fakes.device()
    cache = on(device, count(1, 2, 1, 1))
    with pytest.raises(OpError, match="position"):
        ops.kv_append(cache, on(device, count(1, 1, 1, 1)), on(device, np.array([[5]], np.int32)))
    np.testing.assert_array_equal(cache.numpy(), count(1, 2, 1, 1))
