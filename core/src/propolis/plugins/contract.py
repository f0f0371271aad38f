"""What core checks of an implementation before it may serve."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

from propolis.errors import PluginError
from propolis.ops import catalogue
from propolis.records import OpImpl


if TYPE_CHECKING:
    from propolis.records import Provenance


def check_impl(impl: Any, source: Provenance) -> OpImpl:
    """
    The implementation, stamped with where it comes from.

    Raises:
        PluginError: it is no OpImpl, its op is unknown, its function's parameters
            differ from the op's, or its dtypes are for parameters the op has not.
    """
    if not isinstance(impl, OpImpl):
        msg = f"propolis_ops gave a {type(impl).__name__}, not an OpImpl"
        raise PluginError(msg)
    spec = catalogue().get(impl.op)
    if spec is None:
        msg = f"propolis_ops gave an implementation of {impl.op!r}, which is no op"
        raise PluginError(msg)
    wanted = list(spec.signature.parameters.values())
    given = list(inspect.signature(impl.fn).parameters.values())
    if not spec.mutates:
        given = given[1:]
    if [_facts(p) for p in given] != [_facts(p) for p in wanted]:
        first = "" if spec.mutates else "out, "
        msg = (
            f"{impl.op}: its function takes {inspect.signature(impl.fn)}; "
            f"the op needs ({first}{str(spec.signature)[1:]}"
        )
        raise PluginError(msg)
    if isinstance(impl.dtypes, Mapping) and not impl.dtypes.keys() <= spec.dtypes.keys():
        msg = f"{impl.op}: dtypes for {sorted(impl.dtypes)}; the op has {list(spec.dtypes)}"
        raise PluginError(msg)
    return dataclasses.replace(impl, provenance=source)


def _facts(parameter: inspect.Parameter) -> tuple[str, Any]:
    """What must agree: the name and the default."""
    return parameter.name, parameter.default
