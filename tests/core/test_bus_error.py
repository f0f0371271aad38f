"""A process that ends as it reads a mapped file."""

from __future__ import annotations

import json
import signal

from programs import NORM
from structlog.testing import capture_logs

from propolis.config import Config
from propolis.runtime import Runtime


# Reads a mapped file that has become shorter, as weights are that somebody overwrites.
SHORTER = """
import mmap, tempfile
def rms_norm(out, x, weight, /, eps=1e-5):
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 16)
        held = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
        held[0]
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="rms_norm", fn=rms_norm, dtypes={dtypes.f32}, priority=100)
"""


def test_a_file_that_becomes_shorter_is_no_fault_of_an_op(site, python, cli):
    """A bus error is of what is mapped: it is told, and nobody is taken out for it."""
    site.plugin("innocent", SHORTER)
    assert python(NORM).returncode == -signal.SIGBUS
    with capture_logs() as logs:
        Runtime.start(Config.load())
    (line,) = [line for line in logs if line["event"].endswith("crashed")]
    assert line["event"] == "process.crashed"
    assert "(Bus error) where a mapped file, as of weights, became shorter" in line["reason"]
    assert json.loads(cli("quarantine", "list", "--json").out) == []
