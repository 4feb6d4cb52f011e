from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.stack.command import ProcessSpec, render, shell_lines, threads
from antiphon_server.stack.models import Model
from antiphon_server.stack.ports import allocate
from antiphon_server.stack.settings import Override, Preset, Role, StackSettings

MODEL = Model("m", "/models/m", local=True, context=4096, chat_template=Path("/models/chat.jinja"))
HUB = Model("org/m", "org/m", local=False, context=None)


def rendered(settings: StackSettings, model: Model = MODEL, cores: int = 2) -> dict[str, ProcessSpec]:
    specs = render(settings, allocate(settings, lambda port: True), model, Path("/logs"), cores=cores)
    return {spec.name: spec for spec in specs}


def value(spec: ProcessSpec, flag: str) -> str:
    """What stands behind the flag; the last one wins, as in vLLM."""
    return spec.argv[max(i for i, word in enumerate(spec.argv) if word == flag) + 1]


def kv(spec: ProcessSpec) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(value(spec, "--kv-transfer-config"))
    return config


@pytest.mark.parametrize("preset", list(Preset))
def test_roles_connector_and_reuse_are_the_same_in_every_preset(preset: Preset) -> None:
    specs = rendered(StackSettings(preset=preset))
    assert list(specs) == ["prefill-0", "decode-0", "router"]
    assert kv(specs["prefill-0"])["kv_role"] == "kv_producer"
    assert kv(specs["decode-0"])["kv_role"] == "kv_consumer"
    for name in ("prefill-0", "decode-0"):
        config = kv(specs[name])
        assert config["kv_connector"] == "AntiphonConnector"
        assert config["kv_connector_module_path"] == "antiphon_server.engine.connector"
        assert config["kv_load_failure_policy"] == "recompute"
        assert "engine_id" not in config
        assert config["kv_buffer_device"] == ("cpu" if preset is Preset.CPU else "cuda")
        extra = config["kv_connector_extra_config"]
        assert extra["bidirectional_kv_xfer"] is True
        assert "kv_load_failure_policy" not in extra
        assert extra.get("backends") == (["LIBFABRIC"] if preset is Preset.EFA else None)
        assert value(specs[name], "--middleware").startswith("antiphon_server.engine.middleware.")
        assert value(specs[name], "--worker-extension-cls").startswith("antiphon_server.engine.extension.")
        assert specs[name].argv[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
        assert specs[name].env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "600"


def test_engines_differ_only_where_they_must() -> None:
    specs = rendered(StackSettings())
    prefill, decode = specs["prefill-0"], specs["decode-0"]
    differing = {(a, b) for a, b in zip(prefill.argv, decode.argv, strict=True) if a != b}
    assert {a for a, _ in differing} == {"8100", value(prefill, "--kv-transfer-config")}
    assert {key for key in prefill.env if prefill.env[key] != decode.env[key]} == {
        "VLLM_NIXL_SIDE_CHANNEL_PORT",
    }


def test_cpu_computes_in_float32_with_small_blocks_over_loopback() -> None:
    spec = rendered(StackSettings(kv_space=3))["decode-0"]
    assert value(spec, "--dtype") == "float32"
    assert value(spec, "--block-size") == "32"
    assert "--enforce-eager" in spec.argv
    assert spec.env["UCX_NET_DEVICES"] == "lo"
    assert spec.env["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert spec.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"


@pytest.mark.parametrize("preset", [Preset.GPU, Preset.EFA])
def test_every_engine_has_gpus_of_its_own(preset: Preset) -> None:
    settings = StackSettings(preset=preset, prefill=2, decode=1, tensor_parallel=2)
    specs = rendered(settings)
    assert [specs[name].env["CUDA_VISIBLE_DEVICES"] for name in ("prefill-0", "prefill-1", "decode-0")] == [
        "0,1",
        "2,3",
        "4,5",
    ]
    for name in ("prefill-0", "decode-0"):
        assert value(specs[name], "--tensor-parallel-size") == "2"
        assert specs[name].env["VLLM_KV_CACHE_LAYOUT"] == "HND"
        assert "--dtype" not in specs[name].argv
        assert not any(key.startswith("VLLM_CPU") for key in specs[name].env)


def test_efa_listens_where_other_nodes_reach_it() -> None:
    spec = rendered(StackSettings(preset=Preset.EFA, address="10.0.0.7"))["decode-0"]
    assert spec.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"
    assert spec.env["FI_PROVIDER"] == "efa"
    assert value(spec, "--host") == "10.0.0.7"
    assert spec.url == "http://10.0.0.7:8200"


def test_side_channels_leave_a_port_for_each_data_parallel_rank() -> None:
    specs = rendered(StackSettings(preset=Preset.GPU, data_parallel=4))
    assert specs["prefill-0"].env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert specs["decode-0"].env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5604"
    assert value(specs["decode-0"], "--data-parallel-size") == "4"


def test_prefix_cache_of_prefill_can_be_off_while_decodes_stays_on() -> None:
    specs = rendered(StackSettings(prefill_cache=False))
    assert "--no-enable-prefix-caching" in specs["prefill-0"].argv
    assert "--enable-prefix-caching" in specs["decode-0"].argv


def test_context_comes_from_the_model_unless_it_is_given() -> None:
    assert value(rendered(StackSettings())["decode-0"], "--max-model-len") == "4096"
    assert value(rendered(StackSettings(max_model_len=512))["decode-0"], "--max-model-len") == "512"
    assert "--max-model-len" not in rendered(StackSettings(), HUB)["decode-0"].argv


def test_only_local_models_turn_the_hub_off() -> None:
    assert rendered(StackSettings())["decode-0"].env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in rendered(StackSettings(), HUB)["decode-0"].env


def test_stock_engines_carry_nothing_of_antiphon() -> None:
    spec = rendered(StackSettings(stock=True))["decode-0"]
    assert kv(spec)["kv_connector"] == "NixlConnector"
    assert "antiphon" not in " ".join(spec.argv)


def test_overrides_of_a_role_and_of_an_engine_are_laid_over_each_other() -> None:
    settings = StackSettings(
        decode=2,
        overrides={
            "decode": Override(flags=("--a", "1"), env={"X": "role", "Y": "role"}, kv_extra={"k": 1, "l": 1}),
            "decode-1": Override(flags=("--a", "2"), env={"X": "own"}, kv_extra={"k": 2}, prefix_cache=False),
            "prefill": Override(failure_policy="fail"),
        },
    )
    specs = rendered(settings)
    assert specs["decode-0"].env["X"] == "role"
    assert (specs["decode-1"].env["X"], specs["decode-1"].env["Y"]) == ("own", "role")
    assert value(specs["decode-1"], "--a") == "2"
    extra = kv(specs["decode-1"])["kv_connector_extra_config"]
    assert (extra["k"], extra["l"], extra["bidirectional_kv_xfer"]) == (2, 1, True)
    assert "--no-enable-prefix-caching" in specs["decode-1"].argv
    assert "--enable-prefix-caching" in specs["decode-0"].argv
    assert kv(specs["prefill-0"])["kv_load_failure_policy"] == "fail"
    assert kv(specs["decode-0"])["kv_load_failure_policy"] == "recompute"


@pytest.mark.parametrize(
    ("engines", "cores", "each"),
    [(2, 2, 1), (2, 5, 2), (3, 2, 1), (2, 1, 1), (2, 16, 8)],
)
def test_cores_are_shared_out(engines: int, cores: int, each: int) -> None:
    assert threads(engines, cores) == each


def test_router_is_told_every_engine() -> None:
    router = rendered(StackSettings(prefill=1, decode=2, host="0.0.0.0", port=9000))["router"]
    assert router.role is Role.ROUTER
    assert router.argv[:4] == (sys.executable, "-m", "antiphon_server.cli", "router")
    pairs = list(zip(router.argv[4::2], router.argv[5::2], strict=True))
    assert pairs == [
        ("--host", "0.0.0.0"),
        ("--port", "9000"),
        ("--prefill", "http://127.0.0.1:8100"),
        ("--decode", "http://127.0.0.1:8200"),
        ("--decode", "http://127.0.0.1:8201"),
    ]
    assert router.health == "http://127.0.0.1:9000/ready"


def test_without_router_there_are_engines_only() -> None:
    assert list(rendered(StackSettings(router=False))) == ["prefill-0", "decode-0"]


def test_the_key_reaches_engines_and_router_by_environment_and_is_never_printed() -> None:
    specs = rendered(StackSettings(key="s3cret"))
    assert specs["decode-0"].env["VLLM_API_KEY"] == "s3cret"
    assert specs["router"].env["ANTIPHON_ENGINE_KEY"] == "s3cret"
    assert not any("s3cret" in word for spec in specs.values() for word in spec.argv)
    printed = "\n".join(shell_lines(specs.values()))
    assert "s3cret" not in printed
    assert 'VLLM_API_KEY="$VLLM_API_KEY"' in printed


@pytest.mark.parametrize("preset", list(Preset))
def test_printed_lines_are_the_commands(preset: Preset) -> None:
    """A shell reads from them exactly the argv and the environment that are started."""
    odd = replace(MODEL, path="/models/it's odd $HOME", name='a "b"')
    for spec in rendered(StackSettings(preset=preset), odd).values():
        (text,) = shell_lines([spec])
        comment, _, line = text.partition("\n")
        assert comment == f"# {spec.name}: {spec.url}"
        words = shlex.split(line.replace("\\\n", " "))
        assert words[0] == "env"
        assert dict(word.split("=", 1) for word in words[1 : 1 + len(spec.env)]) == dict(spec.env)
        assert tuple(words[1 + len(spec.env) :]) == spec.argv
