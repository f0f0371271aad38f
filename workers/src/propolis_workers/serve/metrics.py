"""What operators watch, in Prometheus' format."""

from __future__ import annotations

import time
from collections import Counter as Counted
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client import CollectorRegistry
from prometheus_client import Counter
from prometheus_client import Gauge
from prometheus_client import Histogram
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily

from propolis_workers.serve.engine import DeadlineError


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Iterator

    from propolis_workers.llm.batch.engine import Request
    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_NEXT = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_DRAWING = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_NOW = {
    "running": "Sequences that are computed",
    "waiting": "Sequences that wait for room",
    "blocks_taken": "Blocks of the cache that sequences use",
    "blocks_kept": "Blocks of the cache that are kept for prompts that begin alike",
    "window_blocks_taken": "Blocks of layers with a window that sequences use",
    "window_blocks_kept": "Blocks of layers with a window that are kept for such prompts",
}
# What an engine counts from its start.
_SO_FAR = {
    "preempted": "How often a sequence had to be computed again for want of room",
    "guessed": "Tokens that were guessed (--speculate)",
    "guessed_right": "Tokens that were guessed, and right",
}


class Metrics:
    """Counts what a service does; each service has its own."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service | None, images: ImageService | None) -> None:
        found = {"llm": service, "sd": images}
        self._engines = {kind: one.engine for kind, one in found.items() if one is not None}
        self._registry = registry = CollectorRegistry()
        name = "propolis_"
        self._requests = Counter(
            name + "requests",
            "Answers that were begun, by how they ended: each choice of a request is one",
            ["kind", "end"],
            registry=registry,
        )
        self._responses = Counter(
            name + "http_responses",
            "Requests over HTTP, by their route and status; refused before their route: other",
            ["route", "status"],
            registry=registry,
        )
        self._tokens = Counter(
            name + "tokens",
            "Tokens of prompts, once for each answer, and drawn",
            ["kind"],
            registry=registry,
        )
        self._first = Histogram(
            name + "time_to_first_token_seconds",
            "From the request to its first token",
            buckets=_FIRST,
            registry=registry,
        )
        self._next = Histogram(
            name + "time_per_token_seconds",
            "From a token to the next",
            buckets=_NEXT,
            registry=registry,
        )
        self._images = Counter(name + "images", "Images that were drawn", registry=registry)
        self._draws = Histogram(
            name + "image_seconds",
            "From a request for images to the last of them",
            buckets=_DRAWING,
            registry=registry,
        )

        def gauge(key: str, what: str, *labels: str) -> Gauge:
            return Gauge(name + key, what, ["kind", *labels], registry=registry)

        self._now = {key: gauge(key, what) for key, what in _NOW.items()}
        self._ready = gauge("ready", "Whether requests are answered")
        self._barred = gauge(
            "quarantined", "Implementations that failed and are not used, by op", "op", "plugin"
        )
        self._memory = gauge("device_memory_bytes", "Of the device: total, free", "what")
        registry.register(self)
        if service is not None:
            service.watch(self._watched)
        if images is not None:
            images.watch(self._drawn)

    def text(self) -> bytes:
        """All of it, as it is now."""
        for gauge in (self._barred, self._memory):
            gauge.clear()  # an engine that ended had others
        for kind, engine in self._engines.items():
            status = engine.status
            for key, gauge in self._now.items():
                gauge.labels(kind).set(status.now.get(key, 0))
            self._ready.labels(kind).set(status.state == "ready")
            barred = Counted((o["op"], o["plugin"]) for o in status.now.get("quarantined", ()))
            for labels, count in barred.items():
                self._barred.labels(kind, *labels).set(count)
            for what, count in status.now.get("memory", {}).items():
                if count is not None:
                    self._memory.labels(kind, what).set(count)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What the engines count themselves, as a registry asks for it."""

        def counter(key: str, what: str, *labels: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"propolis_{key}", what, labels=["kind", *labels])

        counts = {key: counter(key, what) for key, what in _SO_FAR.items()}
        restarts = counter("engine_restarts", "Engines that ended")
        fallbacks = counter("fallback_calls", "Calls that fell to the CPU, by op", "op", "reason")
        for kind, engine in self._engines.items():
            status = engine.status
            restarts.add_metric([kind], status.restarts)
            for key, family in counts.items():
                family.add_metric([kind], status.now.get(key, 0))
            for one in status.now.get("fallbacks", ()):
                fallbacks.add_metric([kind, one["op"], one["reason"]], one["calls"])
        yield from (*counts.values(), restarts, fallbacks)

    def responded(self, route: str, status: int) -> None:
        """
        Count a request over HTTP that is over.

        Args:
            route: that it was for, as the application names it.
            status: of its response; 0 where there was none.
        """
        self._responses.labels(route, str(status)).inc()

    async def _watched(
        self, request: Request, answer: AsyncGenerator[dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Pass an answer on and count it."""
        last, first, end = time.perf_counter(), True, "cancelled"
        self._tokens.labels("prompt").inc(len(request.prompt))
        try:
            async with aclosing(answer):
                async for one in answer:
                    if "finish" in one:
                        end = one["finish"]["stop_reason"].lower()
                    if "token" not in one:  # but how likely those of the prompt are, or an end
                        yield one
                        continue
                    now = time.perf_counter()
                    (self._first if first else self._next).observe(now - last)
                    last, first = now, False
                    self._tokens.labels("drawn").inc()
                    yield one
        except Exception as exc:
            end = "timeout" if isinstance(exc, DeadlineError) else "error"
            raise
        finally:
            self._requests.labels("llm", end).inc()

    async def _drawn(
        self, answer: AsyncGenerator[dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """The same for images."""
        started, end = time.perf_counter(), "cancelled"
        try:
            async with aclosing(answer):
                async for one in answer:
                    if "image" in one:
                        self._images.inc()
                    if "finish" in one:
                        end = "done"
                        self._draws.observe(time.perf_counter() - started)
                    yield one
        except Exception as exc:
            end = "timeout" if isinstance(exc, DeadlineError) else "error"
            raise
        finally:
            self._requests.labels("sd", end).inc()


__all__ = ["Metrics"]
