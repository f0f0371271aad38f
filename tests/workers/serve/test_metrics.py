"""What operators watch, of engines that are in any state."""

from __future__ import annotations

import re
from types import SimpleNamespace

from propolis_workers.serve.engine import Status
from propolis_workers.serve.metrics import Metrics


def test_what_failed_and_what_is_free():
    """Implementations that are not used are counted by op; memory and fallbacks are told."""
    now = {
        "running": 2,
        "memory": {"total": 100, "free": None},
        "fallbacks": [{"op": "sort", "reason": "no kernel", "calls": 3, "nbytes": 9}],
        "quarantined": [
            {
                "op": "attention",
                "plugin": "flash_attn_ck",
                "what": "attention (f16)",
                "reason": "x",
            },
            {
                "op": "attention",
                "plugin": "flash_attn_ck",
                "what": "attention (bf16)",
                "reason": "x",
            },
        ],
    }
    engine = SimpleNamespace(status=Status("restarting", now=now, restarts=4))
    service = SimpleNamespace(engine=engine, watch=lambda _: None)
    told = Metrics(None, service).text().decode()
    for line in (
        'propolis_running{kind="sd"} 2.0',
        'propolis_ready{kind="sd"} 0.0',
        'propolis_engine_restarts_total{kind="sd"} 4.0',
        'propolis_device_memory_bytes{kind="sd",what="total"} 100.0',
        'propolis_fallback_calls_total{kind="sd",op="sort",reason="no kernel"} 3.0',
        'propolis_quarantined{kind="sd",op="attention",plugin="flash_attn_ck"} 2.0',
    ):
        assert line in told
    assert 'what="free"' not in told


def test_every_response_is_counted(serving):
    """Refused requests too, which the counts of answers do not have: by route and status."""
    server = serving(token="secret")
    ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    bearer = {"Authorization": "Bearer secret"}
    wrong = {"Authorization": "Bearer x"}
    assert server.http.post("/v1/chat/completions", json=ask, headers=wrong).status_code == 401
    for body in (ask, {**ask, "timeout": 1e-6}, {**ask, "n": 0}):
        server.http.post("/v1/chat/completions", json=body, headers=bearer)
    server.http.get("/nowhere", headers=bearer)
    told = server.http.get("/metrics", headers=bearer).text
    counts = dict(re.findall(r'http_responses_total{route="(.*?",status=".*?)"} (.*)', told))
    chat = '/v1/chat/completions",status="'
    assert {key: int(float(count)) for key, count in counts.items()} == {
        'other",status="401': 1,
        f"{chat}200": 1,
        f"{chat}504": 1,
        f"{chat}400": 1,
        'other",status="404': 1,
    }
