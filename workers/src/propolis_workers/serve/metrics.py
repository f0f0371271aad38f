"""What operators watch, in Prometheus' format."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client import CollectorRegistry
from prometheus_client import Counter
from prometheus_client import Gauge
from prometheus_client import Histogram
from prometheus_client import generate_latest


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from propolis_workers.llm.batch.engine import Request
    from propolis_workers.serve.service import Service

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_NEXT = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_NOW = {
    "running": "Sequences that are computed",
    "waiting": "Sequences that wait for room",
    "preempted": "How often a sequence had to be computed again for want of room",
    "blocks_taken": "Blocks of the cache that sequences use",
    "blocks_kept": "Blocks of the cache that are kept for prompts that begin alike",
}


class Metrics:
    """Counts what a service does; each service has its own."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = registry = CollectorRegistry()
        name = "propolis_"
        self._requests = Counter(
            name + "requests", "Requests, by how they ended", ["end"], registry=registry
        )
        self._tokens = Counter(
            name + "tokens", "Tokens of prompts, and drawn", ["kind"], registry=registry
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
        self._now = {key: Gauge(name + key, what, registry=registry) for key, what in _NOW.items()}
        self._restarts = Gauge(name + "engine_restarts", "Engines that ended", registry=registry)
        self._ready = Gauge(name + "ready", "Whether requests are answered", registry=registry)
        self._fallbacks = Gauge(
            name + "fallback_calls",
            "Calls that fell to the CPU, by op",
            ["op", "reason"],
            registry=registry,
        )
        service.watch(self._watched)

    def text(self) -> bytes:
        """All of it, as it is now."""
        status = self._service.engine.status
        for key, gauge in self._now.items():
            gauge.set(status.now.get(key, 0))
        self._restarts.set(status.restarts)
        self._ready.set(status.state == "ready")
        for one in status.now.get("fallbacks", ()):
            self._fallbacks.labels(one["op"], one["reason"]).set(one["calls"])
        return generate_latest(self._registry)

    async def _watched(
        self, request: Request, answer: AsyncGenerator[dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Pass an answer on and count it."""
        last, first, end = time.perf_counter(), True, "cancelled"
        self._tokens.labels("prompt").inc(len(request.prompt))
        try:
            async for one in answer:
                now = time.perf_counter()
                (self._first if first else self._next).observe(now - last)
                last, first = now, False
                self._tokens.labels("drawn").inc()
                if "finish" in one:
                    end = one["finish"]["stop_reason"].lower()
                yield one
        except Exception:
            end = "error"
            raise
        finally:
            self._requests.labels(end).inc()


__all__ = ["Metrics"]
