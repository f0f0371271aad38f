"""
Plugins that were built for API level 1, before core was laid in layers.

The wheels in ``tests/data/level1`` are what `propolis new-plugin hive_add` and
`propolis new-plugin hive_box --device box` of that day gave; they are never built again.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from propolis import Runtime
from propolis import Tensor
from propolis import ops


WHEELS = sorted((Path(__file__).parents[1] / "data" / "level1").glob("*.whl"))


@pytest.fixture
def installed(site) -> None:
    """Both wheels, unpacked as an installer does."""
    assert ["hive_add-0.1.0-py3-none-any.whl", "hive_box-0.1.0-py3-none-any.whl"] == [
        wheel.name for wheel in WHEELS
    ]
    for wheel in WHEELS:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site.folder)


@pytest.mark.usefixtures("installed")
def test_they_load_unchanged(cli):
    """Vetted in a child process and loaded, with nothing to say against them."""
    done = cli("plugins", "--json")
    status = {p["name"]: (p["status"], p["reason"]) for p in json.loads(done.out)}
    assert {"hive_add": ("loaded", ""), "hive_box": ("loaded", "")} == {
        name: found for name, found in status.items() if name.startswith("hive")
    }


@pytest.mark.usefixtures("installed")
def test_they_serve():
    """The one's add runs on the CPU before the reference's, the other's on its own device."""
    runtime = Runtime.start()
    x = np.float32([1, 2, 3])
    for name, plugin in (("cpu", "hive_add"), ("box:0", "hive_box")):
        device = runtime.device(name)
        a = Tensor.from_numpy(x, device)
        np.testing.assert_array_equal(ops.add(a, a).numpy(), 2 * x)
        assert [f"{plugin} (hive-{plugin[5:]} 0.1.0)"] == device.table.placement.as_dict()["ops"][
            "add"
        ]
