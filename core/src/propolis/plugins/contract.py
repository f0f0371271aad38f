"""What core checks of a plugin's hooks, and of an implementation before it may serve."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING
from typing import Any

import pluggy

from propolis import hookspecs
from propolis.dtypes import DType
from propolis.errors import PluginError
from propolis.ops import catalogue
from propolis.records import OpImpl
from propolis.wording import did_you_mean


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence

    from propolis.ops import OpSpec
    from propolis.records import Provenance

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# How a parameter of the op is passed, so how the function's own must take it.
_TAKES: dict[Any, tuple[Any, ...]] = {
    inspect.Parameter.POSITIONAL_ONLY: _POSITIONAL,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: (inspect.Parameter.POSITIONAL_OR_KEYWORD,),
    inspect.Parameter.KEYWORD_ONLY: _KEYWORD,
}


def hook_problems(owner: str, plugin: Any, hooks: Sequence[str]) -> list[str]:
    """
    What is wrong with a plugin's hooks, all of it; empty where nothing is.

    Args:
        owner: the plugin's name.
        plugin: its module or object.
        hooks: names of its functions that carry our marker.
    """
    known = [name for name in vars(hookspecs) if name.startswith("propolis_")]
    if not hooks:
        act = "decorate functions with propolis.hookimpl; the hooks are"
        return [f"it implements no hook: {act} {', '.join(known)}"]
    problems = [
        f"{name} would never be called: decorate it with propolis.hookimpl"
        for name in known
        # The probe is called by its name.
        if name not in (*hooks, "propolis_probe") and callable(getattr(plugin, name, None))
    ]
    for name in hooks:
        if name not in known:
            listed = f"the hooks are {', '.join(known)}"
            hint = did_you_mean(name, known, most=1, otherwise=listed)
            problems.append(f"there is no hook {name}: {hint}")
            continue
        # pluggy judges all of a plugin's hooks at once, and tells of the first.
        judge = pluggy.PluginManager(hookspecs.PROJECT)
        judge.add_hookspecs(hookspecs)
        try:
            judge.register(SimpleNamespace(**{name: getattr(plugin, name)}), owner)
        except pluggy.PluginValidationError as exc:
            problems.append(str(exc))
    return problems


def check_impls(impls: Iterable[Any], source: Provenance) -> list[OpImpl]:
    """
    The implementations, as :func:`check_impl` gives them.

    Raises:
        PluginError: some are wrong; the message tells of each.
    """
    checked, problems = [], []
    for impl in impls:
        try:
            checked.append(check_impl(impl, source))
        except PluginError as exc:
            problems.append(exc)
    if problems:
        raise PluginError("; ".join(map(str, problems))) from problems[0]
    _check_apart(checked)
    return checked


def _check_apart(impls: Iterable[OpImpl]) -> None:
    """Whatever is said of one of a plugin's kernels, by op, dtypes and variant, is said of one."""
    known: dict[object, list[OpImpl]] = {}
    for impl in impls:
        allowed, given = catalogue()[impl.op].dtypes, impl.dtypes
        kinds = given if isinstance(given, Mapping) else dict.fromkeys(allowed, given)
        for key in product(*(kinds.get(name, allowed[name]) for name in allowed)):
            others = known.setdefault((impl.op, impl.device, impl.variant, key), [])
            if any(_may_meet(impl, other) for other in others):
                names = ", ".join(kind.name for kind in key)
                msg = (
                    f"{impl.op}: two implementations for {names} on {impl.device} have the "
                    f"variant {impl.variant!r}: give each a variant of its own"
                )
                raise PluginError(msg)
            others.append(impl)


def _may_meet(one: OpImpl, other: OpImpl) -> bool:
    """Whether there is an architecture for which both are."""
    return one.archs is None or other.archs is None or not set(one.archs).isdisjoint(other.archs)


def check_impl(impl: Any, source: Provenance) -> OpImpl:
    """
    The implementation, stamped with where it comes from.

    Raises:
        PluginError: it is no OpImpl, its op is unknown, its function's parameters
            differ from the op's, its dtypes are for parameters the op has not, it works
            in place where the op does not, or a field is of the wrong type.
    """
    if not isinstance(impl, OpImpl):
        msg = f"propolis_ops gave a {type(impl).__name__}, not an OpImpl"
        raise PluginError(msg)
    spec = catalogue().get(impl.op)
    if spec is None:
        listed = "`propolis ops` lists them"
        hint = did_you_mean(str(impl.op), catalogue(), most=1, otherwise=listed)
        msg = f"propolis_ops gave an implementation of {impl.op!r}, which is no op; {hint}"
        raise PluginError(msg)
    _check_function(impl, spec)
    _check_takes_arguments(impl, spec, "supports()", impl.supports)
    _check_workspace(impl, spec)
    _check_dtypes(impl, spec)
    if not isinstance(impl.priority, int):
        msg = f"{impl.op}: priority is {impl.priority!r}; it must be a whole number"
        raise PluginError(msg)
    if impl.in_place and not spec.elementwise:
        msg = f"{impl.op}: in_place is True; {impl.op} is not elementwise: its output is apart"
        raise PluginError(msg)
    if not isinstance(impl.variant, str):
        msg = f"{impl.op}: variant is {impl.variant!r}; it must be a string"
        raise PluginError(msg)
    # A string is a collection too: "gfx90" would match every "gfx90a".
    if impl.archs is not None and isinstance(impl.archs, str):
        msg = f"{impl.op}: archs is {impl.archs!r}; it must be a set: frozenset({{{impl.archs!r}}})"
        raise PluginError(msg)
    return dataclasses.replace(impl, provenance=source)


def _check_function(impl: OpImpl, spec: OpSpec) -> None:
    signature = _signature(impl.op, "function", impl.fn)
    wanted = list(spec.signature.parameters.values())
    given = list(signature.parameters.values())
    outs, given = given[: spec.outputs], given[spec.outputs :]
    fits = len(outs) == spec.outputs and all(p.kind in _POSITIONAL for p in outs)
    fits = fits and [p.name for p in given] == [p.name for p in wanted]
    for mine, theirs in zip(given, wanted, strict=False):
        fits = fits and mine.kind in _TAKES[theirs.kind] and _same(mine.default, theirs.default)
    if not fits:
        first = ("", "out, ", "out0, out1, ")[spec.outputs]
        msg = (
            f"{impl.op}: its function takes {signature}; "
            f"the op needs ({first}{_parameters(spec)[1:]}, and writes its results there"
        )
        raise PluginError(msg)


def _check_takes_arguments(impl: OpImpl, spec: OpSpec, what: str, function: Any) -> None:
    """It may be vague (``*args, **kwargs``), but must take the op's arguments."""
    if function is None:
        return
    signature = _signature(impl.op, what, function)
    parameters = spec.signature.parameters.values()
    try:
        # As the op's callers may: optional parameters by position, or by keyword.
        for by_position in (_POSITIONAL, (inspect.Parameter.POSITIONAL_ONLY,)):
            args = [None for p in parameters if p.kind in by_position]
            signature.bind(*args, **{p.name: None for p in parameters if p.kind not in by_position})
    except TypeError as exc:
        msg = (
            f"{impl.op}: its {what} takes {signature}; the op's arguments are "
            f"{_parameters(spec)}: {exc}"
        )
        raise PluginError(msg) from exc


def _parameters(spec: OpSpec) -> str:
    return str(spec.signature.replace(return_annotation=inspect.Signature.empty))


def _check_workspace(impl: OpImpl, spec: OpSpec) -> None:
    bound: Any = impl.workspace
    if callable(bound):
        _check_takes_arguments(impl, spec, "workspace()", bound)
    elif bound is not None and (not isinstance(bound, int) or bound < 0):
        msg = (
            f"{impl.op}: workspace is {bound!r}; it must be a number of bytes, a function of "
            f"the op's arguments that gives it, or None"
        )
        raise PluginError(msg)


def _check_dtypes(impl: OpImpl, spec: OpSpec) -> None:
    given = impl.dtypes
    if isinstance(given, Mapping):
        if not given.keys() <= spec.dtypes.keys():
            msg = f"{impl.op}: dtypes for {sorted(map(str, given))}; the op has {list(spec.dtypes)}"
            raise PluginError(msg)
        collections = list(given.values())
        for name, kinds in given.items():
            for kind in kinds if isinstance(kinds, Collection) else ():
                if isinstance(kind, DType) and kind not in spec.dtypes[name]:
                    has = ", ".join(sorted(d.name for d in spec.dtypes[name]))
                    msg = f"{impl.op}: {name} is never {kind}; the op has {has}"
                    raise PluginError(msg)
    else:
        collections = [given]
    for kinds in collections:
        if not isinstance(kinds, Collection) or not all(isinstance(d, DType) for d in kinds):
            msg = (
                f"{impl.op}: dtypes are {kinds!r}; they must be a collection of DType, "
                f"as {{dtypes.f32, dtypes.f16}}"
            )
            raise PluginError(msg)


def _signature(op: str, what: str, function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as exc:
        msg = f"{op}: its {what} is {function!r}, whose parameters cannot be read: {exc}"
        raise PluginError(msg) from exc


def _same(mine: Any, theirs: Any) -> bool:
    return mine is theirs or (type(mine) is type(theirs) and bool(mine == theirs))
