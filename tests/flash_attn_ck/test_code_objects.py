"""The code objects of this checkout, where `make ck` made them."""

from __future__ import annotations

import hashlib

import pytest

from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck._instances import ARGUMENTS
from propolis_flash_attn_ck._instances import INSTANCES
from propolis_rocm_hip import codeobject
from propolis_rocm_hip.modules import check_signatures


@pytest.fixture(scope="module")
def objects():
    """Instance, architecture, manifest entry and code of each."""
    found = _code.manifest()
    if not found:
        pytest.skip("no code objects: `make ck` builds them")
    return [
        (instance, arch, found["instances"][instance.name][arch])
        for instance in INSTANCES
        for arch in found["archs"]
    ]


def test_files_are_what_the_manifest_says(objects):
    """Each unpacks to what was compiled, for the architecture that it claims, with our argument."""
    for instance, arch, entry in objects:
        code = _code.read_object(entry["file"])
        assert entry["sha256"] == hashlib.sha256(code).hexdigest()
        assert arch == codeobject.arch_of(code)
        check_signatures(code, {instance.name: ARGUMENTS}, entry["file"])


def test_no_kernel_uses_scratch(objects):
    """Kernels live in registers."""
    for instance, arch, entry in objects:
        uses = entry["uses"]
        assert 0 == uses["scratch"], (instance.name, arch)
        assert 0 == uses["spills"] == uses["scalar_spills"], (instance.name, arch)
        # Of 512: two waves of a unit's share where there are no more than 256.
        assert uses["registers"] <= (256 if instance.head_dim <= 128 else 320)
        assert uses["lds"] <= 64 << 10
        assert 64 == uses["wavefront"]
