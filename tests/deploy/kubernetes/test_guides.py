"""What docs/kubernetes.md and docs/upgrading.md show renders, and the doctor finds nothing in any of it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_server.doctor.declared.examine import examine
from antiphon_server.doctor.declared.manifests import read
from antiphon_server.doctor.finding import Severity
from deploy.docker.dockerfile import stages
from deploy.kubernetes.objects import component, container, environment, named, of_kind, pods, templates
from deploy.kubernetes.render import COMPONENTS, MANIFESTS, OVERLAYS, ROOT, Kustomize, Manifest, rendered
from deploy.kubernetes.validate import faults

GUIDES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("kubernetes", "upgrading")}


def shown(guide: str, name: str, tool: Kustomize, folder: Path) -> list[Manifest]:
    """The objects of a kustomization that a guide shows, or a text; it lies beside the folder ``server``."""
    whole = GUIDES.get(guide, guide)
    text = re.search(rf"```yaml\n# {name}/kustomization\.yaml\n(.*?)```", whole, re.DOTALL)
    assert text is not None
    here = os.path.relpath(MANIFESTS, folder)
    (folder / "kustomization.yaml").write_text(text[1].replace("../server/deploy/kubernetes", here))
    return rendered(tool, folder)


@pytest.fixture
def production(tool: Kustomize, tmp_path: Path) -> list[Manifest]:
    return shown("kubernetes", "production", tool, tmp_path)


def serious(objects: list[Manifest], folder: Path) -> list[str]:
    """What the doctor warns of, or worse."""
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    (scene,) = read([file])
    found = examine(scene.declared).findings
    return [str(finding) for finding in found if finding.severity is not Severity.NOTE]


def test_the_folder_of_your_own_renders_as_the_guide_says(production: list[Manifest]) -> None:
    assert [fault for item in production for fault in faults(item)] == []
    decode = named(production, "StatefulSet", "antiphon-decode")
    assert decode["spec"]["replicas"] == 2
    engine = templates(decode)[0]
    assert container(engine)["image"] == "registry.example.com/antiphon/engine-efa:0.1.0"
    assert environment(production, engine)["ANTIPHON_ENGINE_DECODE_TTL"] == "120"
    assert environment(production, engine)["ANTIPHON_ENGINE_PRESET"] == "efa"
    router = templates(named(production, "Deployment", "antiphon-router"))[0]
    assert environment(production, router)["ANTIPHON_KEEP"] == "600"
    assert of_kind(production, "HTTPRoute", "PrometheusRule", "HorizontalPodAutoscaler")


def test_engines_of_several_nodes_are_added_as_the_guide_says(tool: Kustomize, tmp_path: Path) -> None:
    objects = shown("kubernetes", "several", tool, tmp_path)
    assert [fault for item in objects for fault in faults(item)] == []
    assert serious(objects, tmp_path) == []
    counts = {"antiphon-decode-group": 2, "antiphon-prefill-group": 1}
    for name, count in counts.items():
        group = named(objects, "LeaderWorkerSet", name)["spec"]
        assert group["replicas"] == count
        assert group["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"] == count


def test_the_trial_runs_images_that_the_guide_builds(tool: Kustomize, tmp_path: Path) -> None:
    objects = shown("kubernetes", "trial", tool, tmp_path)
    assert [fault for item in objects for fault in faults(item)] == []
    assert serious(objects, tmp_path) == []
    guide = GUIDES["kubernetes"]
    built = dict(re.findall(r"docker build -f (?:\S+) --target (\S+) -t (\S+) \.", guide))
    assert set(built) <= set(stages())
    pulled = {container(template)["image"] for template in pods(objects)}
    assert {image for image in pulled if not image.startswith("redis:")} == set(built.values())
    assert set(re.findall(r"docker push (\S+)", guide)) == set(built.values())
    assert guide.index("docker build") < guide.index("kubectl apply -k trial")
    assert len(re.findall(r"kubectl apply -k (?:server|\.)", guide)) == 0, "images of nowhere"


def test_the_parsers_of_the_model_over_several_nodes_are_its_own(overlays: Any) -> None:
    guide = (ROOT / "docs" / "efa.md").read_text()
    group = of_kind(overlays["efa-multinode"], "LeaderWorkerSet")[0]
    told = environment(overlays["efa-multinode"], templates(group)[0])
    row = next(line for line in GUIDES["kubernetes"].splitlines() if line.startswith("| `efa-multinode`"))
    assert f"`{told['ANTIPHON_ENGINE_MODEL']}`" in row
    assert f"model: {told['ANTIPHON_ENGINE_MODEL']}-FP8" in guide
    assert ", ".join(told["ANTIPHON_ENGINE_FLAGS"].split()) in guide


@pytest.mark.parametrize("folder", ["trial", "production"])
def test_secrets_and_the_doctor_come_before_what_is_applied(folder: str) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", GUIDES["kubernetes"], re.DOTALL | re.MULTILINE)
    (steps,) = [block for block in blocks if f"kubectl apply -k {folder}\n" in block]
    before, _, _ = steps.partition(f"kubectl apply -k {folder}\n")
    assert f"kubectl kustomize {folder} > fleet.yaml\nantiphon doctor fleet.yaml\n" in before
    secret = "antiphon-tenants" if folder == "production" else "antiphon-keys"
    assert f"create secret generic {secret} " in before


def engines_of(objects: list[Manifest]) -> dict[str, tuple[int, str, dict[str, Any]]]:
    """Replicas, image without its version and environment of the engines, by role."""
    sets = {component(item): item for item in of_kind(objects, "StatefulSet")}
    sets.pop("redis", None)
    return {
        role: (
            item["spec"]["replicas"],
            container(templates(item)[0])["image"].rpartition(":")[0],
            environment(objects, templates(item)[0]),
        )
        for role, item in sets.items()
    }


def test_the_second_generation_is_the_first_of_another_version(
    production: list[Manifest], tool: Kustomize, tmp_path: Path
) -> None:
    objects = shown("upgrading", "next", tool, tmp_path)
    assert [fault for item in objects for fault in faults(item)] == []
    sets = of_kind(objects, "StatefulSet")
    assert [item["metadata"]["name"] for item in sets] == ["antiphon-decode-next", "antiphon-prefill-next"]
    for item in sets:
        template = templates(item)[0]
        assert template["metadata"]["labels"]["antiphon/generation"] == "next"
        assert container(template)["image"].endswith("/antiphon/engine-efa:0.2.0")
    assert engines_of(objects) == engines_of(production)


def test_an_overlay_whose_generation_ended_does_not_start_it_again(tool: Kustomize, tmp_path: Path) -> None:
    (ended,) = re.findall(r"```yaml\n(replicas:\n.*?)```", GUIDES["upgrading"], re.DOTALL)
    before = GUIDES["kubernetes"]
    place = before.index("# production/kustomization.yaml")
    replicas = re.compile(r"^replicas:\n(?: .*\n)+", re.MULTILINE)
    text = before[:place] + replicas.sub(ended, before[place:], count=1)
    objects = shown(text, "production", tool, tmp_path)
    assert {role: count for role, (count, _, _) in engines_of(objects).items()} == {"prefill": 0, "decode": 0}
    assert "delete statefulset" not in GUIDES["upgrading"]


def test_every_overlay_and_component_is_told_of() -> None:
    for name in (*OVERLAYS, *COMPONENTS):
        assert f"`{name}`" in GUIDES["kubernetes"]


def test_every_file_that_is_named_is_there() -> None:
    for guide in GUIDES.values():
        for name in re.findall(r"`((?:server|base|components)/[\w./-]+)`", guide):
            assert any((root / name).exists() for root in (ROOT, MANIFESTS)), name


def test_every_test_that_is_named_is_there() -> None:
    tests = ROOT / "tests" / "router"
    for file, name in re.findall(r"`([\w./]+\.py)(?:::(\w+))?`", GUIDES["upgrading"]):
        assert f"def {name}(" in (tests / file).read_text() if name else (tests / file).exists()


def test_seconds_are_those_of_the_manifests(overlays: Any) -> None:
    objects = overlays["efa"]
    rows = {
        row.split("|")[1].strip(): row for row in GUIDES["kubernetes"].splitlines() if row.startswith("|")
    }
    for place, kind, name in ((2, "Deployment", "antiphon-router"), (3, "StatefulSet", "antiphon-decode")):
        template = templates(named(objects, kind, name))[0]
        pause = container(template)["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert rows["`preStop`"].split("|")[place].strip().startswith(f"{pause} s")
        whole = template["spec"]["terminationGracePeriodSeconds"]
        assert rows["killed after"].split("|")[place].strip() == f"{whole} s"


def test_the_doctor_finds_nothing_to_mend(objects: list[Manifest], tmp_path: Path) -> None:
    assert serious(objects, tmp_path) == []


def test_the_doctor_sees_engines_that_differ(overlays: Any, tmp_path: Path) -> None:
    objects: list[Manifest] = yaml.safe_load(yaml.safe_dump(overlays["gpu"]))
    for item in of_kind(objects, "StatefulSet"):
        if component(item) == "decode":
            own = container(templates(item)[0])
            own["env"].append({"name": "ANTIPHON_ENGINE_BLOCK_SIZE", "value": "16"})
    assert any("block" in line for line in serious(objects, tmp_path))
