"""Bodies that nobody would send: schemathesis makes them from the server's own description."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest
from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis import given
from hypothesis import settings
from patience import patience

from propolis import Config
from propolis_workers.serve.engine import Engine
from propolis_workers.serve.image_service import ImageService
from propolis_workers.serve.service import Service


pytestmark = pytest.mark.oracle
# Streams last as long as somebody reads them.
STREAMS = ("/v1/loading/progress",)


@pytest.fixture(scope="module")
def schemathesis():
    """The package; without it tests are skipped, or fail where oracles are required."""
    if importlib.util.find_spec("schemathesis") is None:
        reason = "schemathesis is not installed: `make oracles` installs it"
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    import schemathesis

    return schemathesis


@pytest.fixture(scope="module")
def both(hosting, tiny_gguf, sd_folder):
    """A server of both tiny models, and of short answers."""
    config = Config(threads=1).model_dump(mode="json")
    options = {"context": 48, "most": 4, "tokens": None}
    writer = Engine({**config, "model": str(tiny_gguf)}, options)
    config["sd_model"] = str(sd_folder)
    painter = Engine(config, {"most": 2, "dtype": "f32"}, kind="sd")
    return hosting(Service(tiny_gguf, writer), ImageService(sd_folder, painter))


def small(case) -> None:
    """Ask for little, so that what is tried is how requests are read."""
    body = case.body if isinstance(case.body, dict) else {}
    for name, most in (("steps", 2), ("max_tokens", 4), ("max_completion_tokens", 4), ("n", 2)):
        if isinstance(body.get(name), int) and body[name] > most:
            body[name] = most
    for name in ("width", "height"):
        if isinstance(body.get(name), int) and body[name] > 64:
            body[name] = 64
    if isinstance(body.get("size"), str):
        body["size"] = "auto"


def test_every_route(both, schemathesis):
    """Whatever is sent, the answer is one that is described, and no error of the server's."""
    schema = schemathesis.openapi.from_url(both.url + "/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 15
    how = settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    asked: dict[str, int] = {}
    for operation in operations:
        if operation.path in STREAMS:
            continue

        @how
        @given(case=operation.as_strategy())
        def ask(case):
            small(case)
            got = case.call(timeout=patience(60))
            body = case.body if isinstance(case.body, dict) else {}
            late = body.get("timeout") or (case.headers or {}).get("X-Request-Timeout")
            said = f"{case.method} {case.formatted_path} {case.body!r}: {got.status_code}"
            assert got.status_code < 500 or (got.status_code == 504 and late), (said, got.text)
            if got.status_code >= 400:
                error = json.loads(got.text)["error"]
                assert error if isinstance(error, str) else error["message"], said
            case.validate_response(
                got,
                checks=[
                    check
                    for check in schemathesis.checks.CHECKS.get_all()
                    if check.__name__ in ("response_schema_conformance", "content_type_conformance")
                ],
            )
            asked[case.operation.label] = asked.get(case.operation.label, 0) + 1

        ask()
    assert sum(asked.values()) > 300
    assert both.http.get("/health").status_code == 200
    assert both.engine.status.restarts == 0
