"""Spans of answers, with OpenTelemetry's own SDK."""

from __future__ import annotations

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from patience import until

from propolis_workers.serve import tracing


@pytest.fixture
def spans(monkeypatch):
    """Where spans go."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def ours(spans) -> list:
    """The spans that the server made, and not FastAPI."""
    made = spans.get_finished_spans()
    return [one for one in made if one.instrumentation_scope.name == "propolis"]


def test_a_span_for_each_answer(serving, spans):
    """It says what was asked of whom, how much, how soon and how it ended, and no text."""
    server = serving()
    parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
    got = server.http.post(
        "/v1/chat/completions",
        headers={"traceparent": parent},
        json={
            "messages": [{"role": "user", "content": "secret words"}],
            "max_tokens": 4,
            "n": 2,
            "logit_bias": {"265": -100, "264": -100, "263": -100},
        },
    )
    usage = got.json()["usage"]
    until(lambda: len(ours(spans)) == 2)
    for span in ours(spans):
        told = dict(span.attributes)
        assert span.name == "chat tiny"
        assert 0 < told.pop("gen_ai.server.time_to_first_token") < 60
        assert told == {
            "http.route": "/v1/chat/completions",
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "propolis",
            "gen_ai.request.model": "tiny",
            "gen_ai.request.max_tokens": 4,
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": 4,
            "gen_ai.response.finish_reasons": ("max_tokens",),
        }
        assert f"{span.context.trace_id:032x}" == parent.split("-")[1]
        assert span.parent is not None
    assert not [one for one in spans.get_finished_spans() if "secret" in one.to_json()]


def test_ends(serving, spans):
    """A job has a span of its own; one that is cancelled says so; an error is an error's status."""
    server = serving()
    body = {"prompt": "the ", "max_tokens": 3, "temperature": 0}
    name = server.http.post("/v1/jobs", json=body).json()["job_id"]
    server.http.get(f"/v1/jobs/{name}/stream")
    until(lambda: ours(spans))
    (job,) = ours(spans)
    assert (job.name, job.attributes["http.route"]) == ("text_completion tiny", "/v1/jobs")
    assert job.status.is_ok or job.status.is_unset
    watched = tracing.watch(server.service)
    request = {"prompt": [1, 2], "max_tokens": 5}
    for end in ("cancelled", "error"):
        watched(request).ended(end)
    *_, cancelled, failed = ours(spans)
    assert cancelled.attributes["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert cancelled.status.is_unset
    assert not failed.status.is_ok


def test_images(drawing, spans):
    """An image has a span too, with how large it is and how many steps it took, and no word."""
    studio = drawing()
    body = {"prompt": "secret words", "size": "64x64", "n": 2, "steps": 2, "seed": 1}
    got = studio.http.post("/v1/images/generations", json=body)
    assert got.status_code == 200, got.text
    until(lambda: ours(spans))
    (span,) = ours(spans)
    assert span.name == f"generate_content {studio.service.name}"
    assert dict(span.attributes) == {
        "http.route": "/v1/images/generations",
        "gen_ai.operation.name": "generate_content",
        "gen_ai.output.type": "image",
        "gen_ai.provider.name": "propolis",
        "gen_ai.request.model": studio.service.name,
        "gen_ai.response.finish_reasons": ("done",),
        "propolis.image.width": 64,
        "propolis.image.height": 64,
        "propolis.image.steps": 2,
        "propolis.image.batch": 2,
    }
    assert not [one for one in spans.get_finished_spans() if "secret" in one.to_json()]


def test_outside_of_fastapis_own(spans):
    """Where no other span is there, the request's header names the parent."""
    header = (b"traceparent", b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
    tracing.SCOPE.set({"headers": [header]})
    request = {"prompt": [1, 2], "max_tokens": 5}
    tracing.watch(type("Service", (), {"name": "m"}))(request).ended("eos")
    (span,) = ours(spans)
    assert span.parent.span_id == 0x0123456789ABCDEF
    tracing.SCOPE.set({})


def test_off(monkeypatch):
    """Without OpenTelemetry, or where nobody set it up, there is nothing to do."""
    assert tracing.watch(None) is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert tracing.watch(None) is None
