"""
A span for each answer, where OpenTelemetry is set up; what was asked is never in it.

The application, or ``opentelemetry-instrument propolis serve``, says where spans go: nothing is
configured or sent from here.  Attributes have the names of OpenTelemetry's conventions for
generative AI.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING
from typing import Any

from propolis import __version__


if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span
    from opentelemetry.trace import Tracer

    from propolis_workers.serve.answers import Watch
    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

SCOPE: ContextVar[Mapping[str, Any]] = ContextVar("SCOPE")
"""Of the request that is being answered, as ASGI has it."""


def watch(service: Service | ImageService) -> Watch | None:
    """
    What makes spans of a service's answers: texts, embeddings and images.

    Returns:
        None where OpenTelemetry is not installed, or nobody set it up: then it costs nothing.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415  (it need not be there)
    except ModuleNotFoundError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    tracer = provider.get_tracer("propolis", __version__)

    def begin(asked: Mapping[str, Any]) -> _Spanned:
        return _Spanned(_begin(tracer, service, asked))

    return begin


def _begin(tracer: Tracer, service: Service | ImageService, asked: Mapping[str, Any]) -> Span:
    from opentelemetry.propagate import extract  # noqa: PLC0415  (as above)
    from opentelemetry.trace import SpanKind  # noqa: PLC0415
    from opentelemetry.trace import get_current_span  # noqa: PLC0415

    scope = SCOPE.get({})
    headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope.get("headers", ())}
    route = getattr(scope.get("route"), "path", "")
    operation, own = _described(asked, route)
    # Newer versions of FastAPI make a span of each request, in which this one lies.
    inside = get_current_span().is_recording()
    return tracer.start_span(
        f"{operation} {service.name}",
        context=None if inside else extract(headers),
        kind=SpanKind.INTERNAL if inside else SpanKind.SERVER,
        attributes={
            "http.route": route,
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "propolis",
            "gen_ai.request.model": service.name,
            **own,
        },
    )


def _described(asked: Mapping[str, Any], route: str) -> tuple[str, dict[str, Any]]:
    """What an engine was asked to do, and how much of it: numbers alone."""
    if "prompt" not in asked:
        params = asked["params"]
        sizes = ("width", "height", "steps", "batch")
        given = {f"propolis.image.{n}": params[n] for n in sizes if params.get(n) is not None}
        return "generate_content", {"gen_ai.output.type": "image", **given}
    if "embed" in asked:
        return "embeddings", {"gen_ai.usage.input_tokens": len(asked["embed"])}
    counts = {
        "gen_ai.request.max_tokens": asked["max_tokens"],
        "gen_ai.usage.input_tokens": len(asked["prompt"]),
    }
    return "chat" if "chat" in route else "text_completion", counts


class _Spanned:
    """One answer, as a span."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._started = time.perf_counter()
        self._tokens = 0

    def told(self, one: Mapping[str, Any]) -> None:
        """Count a token; note when the first came."""
        if "token" not in one:
            return  # of images and embeddings
        if not self._tokens:
            spent = time.perf_counter() - self._started
            self._span.set_attribute("gen_ai.server.time_to_first_token", spent)
        self._tokens += 1

    def ended(self, end: str) -> None:
        """End the span, with how the answer ended."""
        from opentelemetry.trace import StatusCode  # noqa: PLC0415  (as above)

        if self._tokens:
            self._span.set_attribute("gen_ai.usage.output_tokens", self._tokens)
        self._span.set_attribute("gen_ai.response.finish_reasons", [end])
        if end == "error":
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


__all__ = ["SCOPE", "watch"]
