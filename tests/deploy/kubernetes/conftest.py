"""The overlays as kustomize renders them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.kubernetes.render import MANIFESTS, OVERLAYS, Kustomize, Manifest, combined, kustomize, rendered

EXTRAS = ("monitoring", "gateway", "hpa", "tenants")


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Kustomize:
    return kustomize(tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session")
def overlays(tool: Kustomize) -> dict[str, list[Manifest]]:
    """Objects by overlay."""
    return {name: rendered(tool, MANIFESTS / "overlays" / name) for name in OVERLAYS}


@pytest.fixture(scope="session")
def full(tool: Kustomize, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """EFA with every component that goes with it."""
    extras = [f"components/{name}" for name in (*EXTRAS, "hugepages")]
    folder = tmp_path_factory.mktemp("full")
    return combined(tool, folder, namespace="antiphon", resources=["overlays/efa"], components=extras)


@pytest.fixture(scope="session")
def following(tool: Kustomize, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The second generation of engines, as docs/upgrading.md makes it."""
    folder = tmp_path_factory.mktemp("following")
    components = ["components/gpu", "components/next"]
    return combined(tool, folder, namespace="antiphon", resources=["base/engines"], components=components)


@pytest.fixture(params=[*OVERLAYS, "full"])
def objects(request: pytest.FixtureRequest, overlays: Any, full: Any) -> list[Manifest]:
    """Of each overlay in turn."""
    found: list[Manifest] = full if request.param == "full" else overlays[request.param]
    return found


Combine = Callable[..., list[Manifest]]


@pytest.fixture
def combine(tool: Kustomize, tmp_path: Path) -> Combine:
    """Render a kustomization of a test's own."""
    return lambda **given: combined(tool, tmp_path, **given)
