"""What operators watch, of engines that are in any state."""

from __future__ import annotations

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
        'propolis_engine_restarts{kind="sd"} 4.0',
        'propolis_device_memory_bytes{kind="sd",what="total"} 100.0',
        'propolis_fallback_calls{kind="sd",op="sort",reason="no kernel"} 3.0',
        'propolis_quarantined{kind="sd",op="attention",plugin="flash_attn_ck"} 2.0',
    ):
        assert line in told
    assert 'what="free"' not in told
