"""Every overlay renders, and every object is what its API takes."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.kubernetes.conftest import EXTRAS
from deploy.kubernetes.objects import container, named, of_kind, pods, templates
from deploy.kubernetes.render import (
    COMPONENTS,
    LEAST,
    MANIFESTS,
    OVERLAYS,
    PACKAGE,
    Kustomize,
    KustomizeMissingError,
    Manifest,
    kustomize,
)
from deploy.kubernetes.validate import NEWEST, OLDEST, SCHEMAS, faults


def test_the_overlays_are_those_that_the_guide_names() -> None:
    assert OVERLAYS == ["cpu", "efa", "efa-multinode", "gpu"]


def test_every_component_is_rendered_here() -> None:
    used = {*EXTRAS, "hugepages", "next"}
    for name in OVERLAYS:
        kustomization = yaml.safe_load((MANIFESTS / "overlays" / name / "kustomization.yaml").read_text())
        used |= {Path(path).name for path in kustomization["components"]}
    assert sorted(used) == COMPONENTS


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_what_its_api_takes(objects: list[Manifest], version: str) -> None:
    assert [fault for item in objects for fault in faults(item, version)] == []


def test_the_second_generation_is_what_its_api_takes(following: list[Manifest]) -> None:
    assert [fault for item in following for fault in faults(item)] == []


def test_objects_are_named_once_and_in_one_namespace(objects: list[Manifest]) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    places = {item["metadata"].get("namespace") for item in objects if item["kind"] != "Namespace"}
    assert places == {"antiphon"}


def test_images_are_named_by_version(objects: list[Manifest]) -> None:
    for template in pods(objects):
        image = container(template)["image"]
        assert re.search(r":\d+\.\d+\.\d+(-\w+)?$", image), image


@pytest.mark.parametrize(
    ("overlay", "image"),
    [("cpu", "engine-cpu"), ("gpu", "engine-gpu"), ("efa", "engine-efa"), ("efa-multinode", "engine-efa")],
)
def test_engines_are_of_the_image_of_their_hardware(overlays: Any, overlay: str, image: str) -> None:
    images = {container(template)["image"].partition(":")[0] for template in pods(overlays[overlay])}
    assert images == {"antiphon/router", f"antiphon/{image}", "redis"}


def test_a_misspelt_field_is_found(overlays: Any, full: list[Manifest]) -> None:
    objects = [*overlays["efa-multinode"], *full]
    for item in objects:
        wrong = copy.deepcopy(item)
        if item["kind"] == "ConfigMap":
            wrong["dataa"] = wrong.pop("data")
        elif "spec" in wrong:
            wrong["spec"]["replicass"] = 1
        else:
            wrong["metadataa"] = wrong["metadata"]
        assert faults(wrong), item["kind"]


def test_a_misspelt_field_of_a_group_of_pods_is_found(overlays: Any) -> None:
    item = copy.deepcopy(of_kind(overlays["efa-multinode"], "LeaderWorkerSet")[0])
    container(templates(item)[1])["resource"] = {}
    assert "resource" in faults(item)[0]


def test_every_schema_is_used(overlays: Any, full: list[Manifest]) -> None:
    kinds = {item["kind"].lower() for item in [*overlays["efa-multinode"], *full]}
    assert {file.stem for file in SCHEMAS.glob("*.json")} <= kinds


def test_what_is_not_committed_is_no_secret(objects: list[Manifest]) -> None:
    assert of_kind(objects, "Secret") == []
    secret = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
    for item in of_kind(objects, "ConfigMap"):
        assert [name for name in item["data"] if secret.search(name) and not name.endswith("_FILE")] == []
    for template in pods(objects):
        for entry in container(template).get("env", ()):
            assert not (secret.search(entry["name"]) and "value" in entry), entry


def test_rendering_fails_where_nothing_can_render(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("deploy.kubernetes.render.PACKAGE", "not-installed-anywhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KustomizeMissingError, match=r"requirements/kubectl\.txt"):
        kustomize(tmp_path)


def test_the_package_that_is_pinned_is_the_one_that_is_used(tool: Kustomize) -> None:
    pinned = (Path(__file__).parents[3] / "requirements" / "kubectl.txt").read_text()
    assert pinned.startswith(f"{PACKAGE}==")
    assert tool.version >= LEAST


def test_the_privileged_are_engines_with_efa_alone(objects: list[Manifest], overlays: Any) -> None:
    efa = objects not in (overlays["cpu"], overlays["gpu"])
    for template in pods(objects):
        own = container(template)
        engine = own["name"] == "engine"
        assert bool(own["securityContext"].get("privileged")) == (efa and engine)
        if not own["securityContext"].get("privileged"):
            assert own["securityContext"]["allowPrivilegeEscalation"] is False
            assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert template["spec"]["securityContext"]["runAsNonRoot"] is True
            assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    enforced = named(objects, "Namespace", "antiphon")["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == ("privileged" if efa else "restricted")


def test_routers_write_nowhere(objects: list[Manifest]) -> None:
    own = container(templates(named(objects, "Deployment", "antiphon-router"))[0])
    assert own["securityContext"]["readOnlyRootFilesystem"] is True
