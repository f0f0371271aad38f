"""What goes wrong with a request, as HTTP says it and in OpenAI's words."""

from __future__ import annotations

import math
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import DeviceError
from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis_workers.serve.engine import AnswerError
from propolis_workers.serve.engine import BusyError
from propolis_workers.serve.engine import DeadlineError
from propolis_workers.serve.engine import DrainingError
from propolis_workers.serve.engine import EngineFailedError
from propolis_workers.serve.engine import EngineGoneError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

# Letters of a value that is repeated to whoever gave it.
_SHORT: Final = 100


class ProblemError(PropolisError):
    """
    A request that is not answered.

    Attributes:
        status: of HTTP.
        code: a word for programs.
        param: the field that is wrong, where it is one.
        retry: seconds until it may be tried again, where that helps.
        errors: what is wrong with each field, of :func:`wrong_field`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry = retry
        self.errors: list[dict[str, Any]] = []

    def body(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        errors = self.errors
        if not errors and self.param:
            errors = [wrong_field(self.param, self.code or "value", str(self))]
        return {"error": error, "errors": errors} if errors else {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        """Of the response."""
        if self.status == HTTPStatus.GATEWAY_TIMEOUT:
            return {"X-Should-Retry": "false"}  # OpenAI's clients would ask twice more, as long
        return {} if self.retry is None else {"Retry-After": str(self.retry)}

    def body_at(self, path: str) -> dict[str, Any]:
        """As who asks there reads it: Ollama's clients want a text."""
        return {"error": str(self)} if path.startswith("/api/") else self.body()


def wrong_field(field: str, constraint: str, message: str, value: Any = None) -> dict[str, Any]:
    """
    What is wrong with a field, as the ancestor's workers say it.

    Args:
        field: with dots where it lies in others.
        constraint: a word for programs.
        message: for people.
        value: that was given; it is repeated where it is short and plain.
    """
    error: dict[str, Any] = {"field": field, "constraint": constraint, "message": message}
    # JSON as others read it has no NaN and no infinity.
    plain = isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))
    if plain and len(str(value)) <= _SHORT:
        error["value"] = value
    return error


def not_served(name: str, known: str, routes: Mapping[str, str] | None = None) -> ProblemError:
    """
    What is said of a model that a route does not serve.

    Args:
        name: of the model.
        known: the name of the one that it serves.
        routes: those of other models of this server, by their names.
    """
    msg = f"the model {name[:100]!r} is not served here; there is {known!r}"
    if routes and name in routes:
        msg = f"the model {name[:100]!r} is for {routes[name]}; here there is {known!r}"
    return ProblemError(404, msg, code="model_not_found", param="model")


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """
    Say of what a mistake is, where it is one, that a field has it.

    Args:
        name: of the field.

    Raises:
        ProblemError: in place of the mistake.
    """
    try:
        yield
    except ProblemError:
        raise
    except UsageError as exc:
        problem = problem_of(exc)
        problem.param = name
        raise problem from exc


def too_long(exc: Exception) -> str | None:
    """OpenAI's word for a prompt that leaves no room; None of another mistake."""
    return "context_length_exceeded" if "no room for an answer" in str(exc) else None


def problem_of(exc: PropolisError) -> ProblemError:
    """An error of ours, as whoever asked is told."""
    if isinstance(exc, ProblemError):
        return exc
    if isinstance(exc, BusyError):
        return ProblemError(429, str(exc), code="busy", retry=1)
    if isinstance(exc, DeadlineError):
        return ProblemError(504, str(exc), code="timeout")
    if isinstance(exc, DrainingError):
        return ProblemError(503, str(exc), code="draining", retry=5)
    if isinstance(exc, EngineFailedError):
        return ProblemError(503, str(exc), code="engine_failed")
    if isinstance(exc, EngineGoneError):
        return ProblemError(503, str(exc), code="engine_unavailable", retry=2)
    if isinstance(exc, UsageError) or (isinstance(exc, AnswerError) and exc.mistaken):
        return ProblemError(400, str(exc), code=too_long(exc))
    code = "out_of_memory" if isinstance(exc, DeviceError) else "engine_error"
    return ProblemError(500, str(exc), code=code)


__all__ = ["ProblemError", "not_served", "of_field", "problem_of", "too_long", "wrong_field"]
