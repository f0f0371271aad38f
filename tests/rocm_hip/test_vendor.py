"""Libraries beside HIP's: where they are looked for, and how their functions are called."""

from __future__ import annotations

import pytest

from propolis.errors import DeviceError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip import vendor
from propolis_rocm_hip.vendor import Library


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The folder of the HIP that is loaded, and the one that pip's wheels would name."""
    loaded, wheels = tmp_path / "rocm" / "lib", tmp_path / "wheels"
    for folder in (loaded, wheels):
        folder.mkdir(parents=True)
    monkeypatch.setattr(_ffi, "hip", lambda: None)
    monkeypatch.setattr(_ffi, "loaded_libraries", lambda stem: [str(loaded / f"{stem}.so.6.4")])
    monkeypatch.setattr(
        _ffi,
        "library_path",
        lambda name: f"{wheels}/lib{name}.so" if name == "blas" else f"lib{name}.so",
    )
    return loaded, wheels


def test_the_tree_of_hip(folders) -> None:
    """The best of the names is taken, in HIP's own folder before another."""
    loaded, wheels = folders
    for file in (wheels / "libblas.so.4", wheels / "libblas.so.5", loaded / "libblas.so.4"):
        file.touch()
    names = ("libblas.so.5", "libblas.so.4")
    assert wheels / "libblas.so.5" == vendor.find("blas", names, "install it")
    assert loaded / "libblas.so.4" == vendor.find("blas", names[::-1], "install it")


def test_nowhere(folders) -> None:
    """The names, the folders that were looked into, and the remedy."""
    loaded, wheels = folders
    with pytest.raises(DeviceError) as caught:
        vendor.find("blas", ("libblas.so.5", "libblas.so.4"), "install it")
    assert str(caught.value) == (
        f"no libblas.so.5 or libblas.so.4 beside HIP's library, in {loaded} or {wheels}: install it"
    )


def test_functions(hipsim) -> None:
    """Numbers go as C's own types and come back so; what is missing says what to do."""
    signatures = {"hipsim_count": "qP", "hipsim_inject": "iPP", "hipsim_nothing": "v"}
    library = Library(hipsim / "lib" / "libamdhip64.so", signatures, "install a newer one")
    assert library.function("hipsim_count")(None) == -1
    assert library.function("hipsim_inject")(None, None) == -1
    assert (library.has("hipsim_count"), library.has("hipsim_nothing")) == (True, False)
    with pytest.raises(DeviceError, match="has no hipsim_nothing: install a newer one"):
        library.function("hipsim_nothing")
    with pytest.raises(KeyError):
        library.function("hipMalloc")


def test_a_file_that_is_no_library(tmp_path) -> None:
    """The loader's reason, and the remedy."""
    (tmp_path / "libblas.so").write_text("no library")
    with pytest.raises(DeviceError, match=r"libblas\.so cannot be loaded: .*; install it$"):
        Library(tmp_path / "libblas.so", {}, "install it")
