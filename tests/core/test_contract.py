# ruff: noqa: ARG005  (signatures are what is tested)

from __future__ import annotations

import ctypes

import pytest

from propolis import OpImpl
from propolis import Provenance
from propolis import dtypes
from propolis.errors import PluginError
from propolis.plugins.contract import check_impl
from propolis.plugins.contract import check_impls


SOURCE = Provenance("fake", "fake-dist", "1.0")


def add(out, a, b, /):
    """The shape of an add."""


def made(**fields):
    """An implementation of add, with those fields instead."""
    return OpImpl(**{"op": "add", "fn": add, "dtypes": {dtypes.f32}, **fields})


def test_a_good_one_is_stamped():
    """The host says where an implementation comes from, whatever the plugin claims."""
    liar = made(provenance=Provenance("cpu_ref", "propolis-cpu-ref", "9"))
    assert check_impl(liar, SOURCE).provenance == SOURCE
    assert liar.provenance.plugin == "cpu_ref"


@pytest.mark.parametrize(
    "fn",
    [
        lambda out, a, b: None,
        lambda out, a, b, /: None,
        lambda result, /, a, b: None,
        type("Callable", (), {"__call__": lambda self, out, a, b: None})(),
    ],
)
def test_functions_that_fit(fn):
    """Names and defaults agree; the destination may have any name."""
    assert check_impl(made(fn=fn), SOURCE).fn is fn


@pytest.mark.parametrize(
    ("op", "fn"),
    [
        ("add", lambda a, b: None),
        ("add", lambda: None),
        ("add", lambda out, b, a: None),
        ("add", lambda out, a: None),
        ("add", lambda out, a, b, c: None),
        ("add", lambda out, a, b=None: None),
        ("add", lambda out, *, a, b: None),
        ("add", lambda *, out, a, b: None),
        ("add", lambda out, a, *b: None),
        ("add", lambda *args: None),
        ("softmax", lambda out, x, dim: None),
        ("softmax", lambda out, x, dim=0: None),
        ("softmax", lambda out, x, dim=-1.0: None),
        ("softmax", lambda out, x, *, dim=-1: None),
        ("softmax", lambda out, x, dim=-1, /: None),
        ("rms_norm", lambda out, x, weight, eps=1e-6: None),
        ("kv_append", lambda out, cache, x, positions: None),
        ("attention", lambda out, q, k, v, kv_len=None, *, causal=False, scale=None: None),
    ],
)
def test_functions_that_do_not_fit(op, fn):
    """What the caller would trip over at run time is refused when the plugin loads."""
    with pytest.raises(PluginError, match=rf"^{op}: its function takes .*; the op needs \("):
        check_impl(made(op=op, fn=fn), SOURCE)


def test_the_message_shows_both_signatures():
    """The author sees what was written and what is needed, destination included."""
    with pytest.raises(PluginError, match=r"takes \(x, y\); the op needs \(out, a: .*b: "):
        check_impl(made(fn=lambda x, y: None), SOURCE)


@pytest.mark.parametrize("fn", [3, None, "add", ctypes.CDLL(None).abs])
def test_functions_without_a_signature(fn):
    """A foreign function's parameters cannot be compared (Python 3.12 gives it any); wrap it."""
    with pytest.raises(PluginError, match=r"add: its function (is .*cannot be read|takes .*needs)"):
        check_impl(made(fn=fn), SOURCE)


@pytest.mark.parametrize(
    "supports",
    [
        lambda a, b: None,
        lambda *args: None,
        lambda *args, **kwargs: None,
        lambda a, b, hint=None: None,
    ],
)
def test_supports_that_fits(supports):
    """It may be vague, and have parameters of its own with defaults."""
    assert check_impl(made(supports=supports), SOURCE).supports is supports


@pytest.mark.parametrize(
    ("op", "supports"),
    [
        ("add", lambda out, a, b: None),
        ("add", lambda a: None),
        ("softmax", lambda x: None),
        ("softmax", lambda x, axis=-1: None),
        ("softmax", lambda *x: None),
    ],
)
def test_supports_that_does_not_fit(op, supports):
    """It is called as the op is: by position, and by keyword."""
    fns = {"add": add, "softmax": lambda out, x, dim=-1: None}
    with pytest.raises(PluginError, match=rf"{op}: its supports\(\) takes .*op's arguments are"):
        check_impl(made(op=op, fn=fns[op], supports=supports), SOURCE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": "ad"}, "implementation of 'ad', which is no op; did you mean add"),
        ({"op": "zzzz"}, "'zzzz', which is no op; `propolis ops` lists them"),
        ({"op": None}, "None, which is no op"),
        ({"dtypes": {"f32"}}, "add: dtypes are {'f32'}; .* collection of DType"),
        ({"dtypes": 7}, "add: dtypes are 7"),
        ({"dtypes": (d for d in [dtypes.f32])}, "add: dtypes are <generator"),
        ({"dtypes": {"a": dtypes.f32}}, "add: dtypes are f32"),
        ({"dtypes": {"x": {dtypes.f32}}}, r"add: dtypes for \['x'\]; the op has \['a'\]"),
        ({"priority": "high"}, "add: priority is 'high'; it must be a whole number"),
        ({"priority": 1.5}, r"add: priority is 1\.5"),
        ({"variant": 64}, "add: variant is 64; it must be a string"),
        ({"dtypes": {"a": {dtypes.f32, dtypes.q4_0}}}, "add: a is never q4_0; the op has .*f32"),
        ({"archs": "gfx1100"}, r"add: archs is 'gfx1100'; .*frozenset\(\{'gfx1100'\}\)"),
    ],
)
def test_fields_of_the_wrong_kind(fields, message):
    """A wrong field is named at once, not found as a candidate that never matches."""
    with pytest.raises(PluginError, match=message):
        check_impl(made(**fields), SOURCE)


def test_in_place_is_for_elementwise_ops():
    """Others read their inputs while they write."""
    impl = made(op="softmax", fn=lambda out, x, dim=-1: None, in_place=True)
    with pytest.raises(PluginError, match="softmax: in_place is True; softmax is not elementwise"):
        check_impl(impl, SOURCE)
    assert check_impl(made(in_place=True), SOURCE).in_place


def test_no_implementation_at_all():
    """The hook must give records."""
    with pytest.raises(PluginError, match="propolis_ops gave a dict, not an OpImpl"):
        check_impl({"op": "add"}, SOURCE)


@pytest.mark.parametrize("workspace", [None, 0, 1 << 20, lambda a, b: 4, lambda *args: 0])
def test_workspaces_that_fit(workspace):
    """Bytes, or a function of the op's arguments; None for none."""
    assert check_impl(made(workspace=workspace), SOURCE).workspace is workspace


@pytest.mark.parametrize(
    ("workspace", "said"),
    [
        (-1, "workspace is -1; it must be a number of bytes"),
        ("1 MiB", "workspace is '1 MiB'; it must be a number of bytes"),
        (1.5, "workspace is 1.5; it must be a number of bytes"),
        (lambda out, a, b: 0, r"its workspace\(\) takes .*op's arguments are"),
    ],
)
def test_workspaces_that_do_not_fit(workspace, said):
    """Anything else is refused when the plugin loads, with what it should be."""
    with pytest.raises(PluginError, match=rf"^add: .*{said}"):
        check_impl(made(workspace=workspace), SOURCE)


def test_all_wrong_implementations_are_told_at_once():
    """Each with what is wrong; one alone in its own words; where none is, they are stamped."""
    wrong = [made(op="adddd"), made(), made(priority="high")]
    with pytest.raises(PluginError, match=r"'adddd', which is no op.*; add: priority is 'high'"):
        check_impls(wrong, SOURCE)
    with pytest.raises(PluginError, match=r"^add: priority is 'high'; it must be a whole number$"):
        check_impls(wrong[1:], SOURCE)
    right = [made(), made(variant="other")]
    assert [impl.provenance for impl in check_impls(right, SOURCE)] == [SOURCE] * 2
