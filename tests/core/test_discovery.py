from __future__ import annotations

import pytest

from propolis.config import Config
from propolis.errors import ConfigError
from propolis.plugins import Candidate
from propolis.plugins import discover
from propolis.plugins.discovery import duplicates
from propolis.plugins.discovery import policy
from propolis.wording import plugin_name


def candidate(name, distribution=None):
    """An installed plugin."""
    return Candidate(distribution or f"{name}-dist", name, "1.0", f"{name}_module")


CPU_REF = Candidate("propolis-cpu-ref", "cpu_ref", "0.1.0", "propolis_cpu_ref.plugin")
INSTALLED = [candidate("rocm_hip"), candidate("rocm_blas"), CPU_REF]


def test_the_reference_is_found():
    """It is installed wherever the tests run, and is essential."""
    (found,) = [c for c in discover() if c.name == "cpu_ref"]
    assert found.is_essential
    assert str(found) == f"cpu_ref (propolis-cpu-ref {found.version})"


def test_metadata_is_read_and_nothing_imported(site):
    """Order is by distribution and name; names and distributions are normalised."""
    site.distribution("Zoo_Two", plugins={"Rocm-HIP": "does.not.exist:at_all"})
    site.distribution("a.zoo", "2.5", plugins={"b": "x", "a": "x"})
    found = [c for c in discover() if c != CPU_REF and "zoo" in c.distribution]
    assert found == [
        Candidate("a-zoo", "a", "2.5", "x"),
        Candidate("a-zoo", "b", "2.5", "x"),
        Candidate("zoo-two", "rocm_hip", "1.0", "does.not.exist:at_all"),
    ]


@pytest.mark.parametrize("metadata", ["", "Metadata-Version: 2.1\n"])
def test_a_damaged_installation_hides_no_other(site, metadata):
    """A dist-info folder without a name, as an interrupted uninstall leaves it, is survived."""
    site.distribution("broken", metadata=metadata, plugins={"broken": "x"})
    site.distribution("whole", plugins={"whole": "x"})
    found = {c.name: c for c in discover()}
    assert found["whole"].distribution == "whole"
    assert (found["broken"].distribution, found["broken"].version) == ("?", "?")


def test_one_entry_point_listed_twice_counts_once(site, tmp_path, monkeypatch):
    """As an editable install beside a leftover may list it."""
    site.distribution("twice", plugins={"a": "x"})
    (site.folder / "twice-1.0.dist-info" / "entry_points.txt").write_text(
        "[propolis.plugins]\na = x\nA = x\n"
    )
    assert [c.name for c in discover() if c.distribution == "twice"] == ["a"]


def test_duplicates():
    """Names that two distributions claim, with both."""
    first, second = candidate("x", "dist-a"), candidate("x", "dist-b")
    assert duplicates([first, *INSTALLED, second]) == {"x": [first, second]}
    assert duplicates(INSTALLED) == {}


def test_plugin_name():
    """Case, dashes and blanks do not tell names apart."""
    assert plugin_name(" Rocm-HIP ") == "rocm_hip"


def refused(**settings):
    """Names refused under these settings."""
    return {c.name: why for c, why in policy(INSTALLED, Config(**settings)).items()}


def test_no_list_admits_all():
    """By default everything installed is loaded."""
    assert refused() == {}


def test_an_allow_list_admits_its_names_and_the_reference():
    """Names are compared as people write them."""
    why = "not in the allow list plugins (PROPOLIS_PLUGINS)"
    assert refused(plugins=["ROCm-hip"]) == {"rocm_blas": why}
    assert refused(plugins=[]) == {"rocm_hip": why, "rocm_blas": why}
    assert refused(plugins=["cpu_ref"]) == {"rocm_hip": why, "rocm_blas": why}


def test_a_deny_list_wins_over_the_allow_list():
    """What is in both is not loaded."""
    why = "denied by disable_plugins (PROPOLIS_DISABLE_PLUGINS)"
    assert refused(plugins=["rocm_hip", "rocm_blas"], disable_plugins=["rocm_hip"]) == {
        "rocm_hip": why
    }


@pytest.mark.parametrize("setting", ["plugins", "disable_plugins"])
def test_unknown_names_are_errors(setting):
    """A typo is not ignored: the error lists near matches and all that is installed."""
    message = (
        rf"{setting} names rocm_hipp, not installed; installed: cpu_ref, rocm_blas, rocm_hip; "
        r"did you mean rocm_hip"
    )
    with pytest.raises(ConfigError, match=message):
        refused(**{setting: ["rocm-hipp"]})
    with pytest.raises(ConfigError, match=r"names zzz, not installed; installed: .*rocm_hip$"):
        refused(**{setting: ["zzz"]})


def test_nothing_installed_at_all():
    """The error says so."""
    with pytest.raises(ConfigError, match="installed: none"):
        policy([], Config(plugins=["a"]))


def test_the_reference_cannot_be_blocked():
    """Every op falls back to it."""
    with pytest.raises(ConfigError, match=r"disable_plugins names cpu_ref: .* cannot be blocked"):
        refused(disable_plugins=["cpu-ref"])
