"""What the containers run is what ``antiphon up`` starts."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon_server.cli import app
from antiphon_server.environment import ENGINE_PREFIX as PREFIX
from antiphon_server.stack import validate
from antiphon_server.stack.command import ProcessSpec, engine_of, render, shell_lines
from antiphon_server.stack.flags import read_flags
from antiphon_server.stack.models import resolve
from antiphon_server.stack.ports import EnginePorts, Ports
from antiphon_server.stack.settings import Override, Preset, Role, StackSettings
from deploy.kubernetes.objects import component, container, environment, pods, templates
from deploy.kubernetes.render import Manifest

ADDRESS = "10.0.0.7"
LWS = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "antiphon-0.antiphon"}
DRAIN = ("--shutdown-timeout", "600")


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the image keeps its models."""
    monkeypatch.setenv("ANTIPHON_CACHE", "/opt/antiphon/models")


def engines(objects: list[Manifest]) -> list[Manifest]:
    return [template for template in pods(objects) if container(template)["name"] == "engine"]


def shown(objects: list[Manifest], template: Manifest, **more: str) -> str:
    """What the container's own command prints that it would become."""
    own = container(template)
    told = {**environment(objects, template), f"{PREFIX}ADDRESS": ADDRESS, f"{PREFIX}KEY": "k", **LWS, **more}
    args = [re.sub(r"\$\((\w+)\)", lambda found: told[found[1]], word) for word in own["args"]]
    program, *words = own["command"]
    assert program == "antiphon"
    printed = CliRunner().invoke(app, [*words, "--print", *args], env=told, catch_exceptions=False)
    assert printed.exit_code == 0, printed.output
    return printed.stdout.strip()


def expected(objects: list[Manifest], template: Manifest, *flags: str) -> ProcessSpec:
    """What the stack renders for the same settings."""
    told = environment(objects, template)
    role = Role(component(template).removesuffix("-worker"))
    settings = StackSettings(
        preset=Preset(told[f"{PREFIX}PRESET"]),
        model=told[f"{PREFIX}MODEL"],
        prefill=int(role is Role.PREFILL),
        decode=int(role is Role.DECODE),
        router=False,
        address=ADDRESS,
        engine_host="0.0.0.0",
        gpus=(),
        max_model_len=int(told[f"{PREFIX}MAX_MODEL_LEN"]) if f"{PREFIX}MAX_MODEL_LEN" in told else None,
        tensor_parallel=int(told.get(f"{PREFIX}TENSOR_PARALLEL", "1")),
        key="k",
        overrides={role.value: Override(flags=(*shlex.split(told.get(f"{PREFIX}FLAGS", "")), *flags))},
    )
    assert validate.settings_faults(settings, {}) == []
    port = EnginePorts(8100 if role is Role.PREFILL else 8200, 5600)
    ports = Ports(8000, *(((port,), ()) if role is Role.PREFILL else ((), (port,))))
    model = resolve(settings.model, build=False)
    (spec,) = render(settings, ports, model, Path(), cores())
    assert spec == engine_of(settings, model, Path(), role, 0, port, cores())
    return spec


def cores() -> int:
    from antiphon_server.stack import node

    return node.cores()


@pytest.mark.parametrize("overlay", ["cpu", "gpu", "efa"])
def test_engines_become_what_the_stack_renders(overlays: Any, overlay: str) -> None:
    objects = overlays[overlay]
    assert [component(template) for template in engines(objects)] == ["decode", "prefill"]
    for template in engines(objects):
        assert shown(objects, template) == "\n".join(shell_lines([expected(objects, template, *DRAIN)]))


def test_engines_over_several_nodes_become_what_the_stack_renders(overlays: Any) -> None:
    objects = overlays["efa-multinode"]
    nodes = ("--nnodes", "2", "--node-rank", "{}", "--master-addr", LWS["LWS_LEADER_ADDRESS"])
    assert len(engines(objects)) == 4
    for template in engines(objects):
        worker = component(template).endswith("-worker")
        rank = str(int(worker))
        flags = [word.format(rank) for word in (*(("--headless",) if worker else DRAIN), *nodes)]
        spec = expected(objects, template, *flags)
        text = shown(objects, template, LWS_WORKER_INDEX=rank)
        assert text == "\n".join(shell_lines([spec]))
        assert ("serve" in spec.argv) == worker  # only vLLM's own command serves a node without an API


def test_gpus_are_those_that_kubernetes_gives(overlays: Any) -> None:
    for overlay in ("gpu", "efa", "efa-multinode"):
        for template in engines(overlays[overlay]):
            assert "CUDA_VISIBLE_DEVICES" not in shown(overlays[overlay], template)


def test_engines_with_efa_read_by_libfabric(overlays: Any) -> None:
    for overlay in ("efa", "efa-multinode"):
        for template in engines(overlays[overlay]):
            assert '"backends": ["LIBFABRIC"]' in shown(overlays[overlay], template)
            assert f"VLLM_NIXL_SIDE_CHANNEL_HOST={ADDRESS}" in shown(overlays[overlay], template)


def test_routers_run_the_command_that_is_tested(objects: list[Manifest]) -> None:
    router = next(template for template in pods(objects) if component(template) == "router")
    assert container(router)["command"] == ["antiphon", "router"]
    assert "args" not in container(router)


def test_all_nodes_of_an_engine_have_the_same_settings(overlays: Any) -> None:
    objects = overlays["efa-multinode"]
    for group in (item for item in objects if item["kind"] == "LeaderWorkerSet"):
        leader, worker = (expected(objects, template) for template in templates(group))
        assert leader.argv == worker.argv
        assert read_flags(leader.argv).get("tensor-parallel-size") == "16"


@pytest.mark.parametrize(("kind", "folder"), [("tool-call", "tool_parsers"), ("reasoning", "reasoning")])
def test_engines_that_need_parsers_name_those_of_vllm(overlays: Any, kind: str, folder: str) -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    known = (Path(spec.origin).parent / folder / "__init__.py").read_text()
    for template in engines(overlays["efa-multinode"]):
        parser = read_flags(expected(overlays["efa-multinode"], template).argv).get(f"{kind}-parser")
        assert parser in re.findall(r'^    "(\w+)": \($', known, re.MULTILINE)
        assert parser != "hermes"
