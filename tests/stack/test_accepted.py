"""vLLM's own parser reads every command that is rendered. Needs vLLM installed, boots no engine."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.stack.command import ProcessSpec, engine_of
from antiphon_server.stack.models import CHATML, Model
from antiphon_server.stack.ports import EnginePorts
from antiphon_server.stack.settings import Override, Preset, Role, StackSettings

pytestmark = pytest.mark.engine

cli_args = pytest.importorskip("vllm.entrypoints.launchers.cli_args", reason="vLLM is not installed")
argparse_utils = pytest.importorskip("vllm.utils.argparse_utils", reason="vLLM is not installed")

MODEL = Model("m", "/models/m", local=True, context=4096, chat_template=CHATML)
PRESETS: dict[Preset, dict[str, Any]] = {
    Preset.CPU: {},
    Preset.GPU: {"tensor_parallel": 2, "data_parallel": 2},
    Preset.EFA: {"tensor_parallel": 8, "address": "10.0.0.7", "engine_host": "0.0.0.0"},
}
NODES = ("--nnodes", "2", "--master-addr", "10.0.0.7", "--master-port", "29501")


def spec_of(preset: Preset, role: Role, *flags: str, **more: Any) -> ProcessSpec:
    settings = StackSettings(
        preset=preset,
        router=False,
        overrides={role.value: Override(flags=flags)},
        **{**PRESETS[preset], **more},
    )
    return engine_of(settings, MODEL, Path(), role, 0, EnginePorts(8100, 5600), 2)


def parsed(spec: ProcessSpec) -> Namespace:
    """As the module that the command names reads it."""
    module, *words = spec.argv[2:]
    parser = argparse_utils.FlexibleArgumentParser()
    if module == "vllm.entrypoints.cli.main":
        serve = pytest.importorskip("vllm.entrypoints.cli.serve")
        serve.cmd_init()[0].subparser_init(parser.add_subparsers(dest="subparser"))
    else:
        assert module == "vllm.entrypoints.openai.api_server"
        cli_args.make_arg_parser(parser)
    read: Namespace = parser.parse_args(words)
    return read


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("preset", list(Preset))
@pytest.mark.parametrize("stock", [False, True])
def test_every_presets_command_is_read(preset: Preset, role: Role, stock: bool) -> None:
    read = parsed(spec_of(preset, role, stock=stock))
    assert read.model == "/models/m"
    assert read.host == ("0.0.0.0" if preset is Preset.EFA else "127.0.0.1")
    assert read.port == 8100
    assert read.tensor_parallel_size == PRESETS[preset].get("tensor_parallel", 1)
    transfer = read.kv_transfer_config
    assert transfer.kv_connector == ("NixlConnector" if stock else "AntiphonConnector")
    assert transfer.is_kv_producer == (role is Role.PREFILL)
    assert transfer.kv_load_failure_policy == "recompute"
    assert transfer.get_from_extra_config("bidirectional_kv_xfer", False) is not stock


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("preset", [Preset.GPU, Preset.EFA])
def test_an_engine_over_several_nodes_is_read_on_each(preset: Preset, role: Role) -> None:
    first = parsed(spec_of(preset, role, *NODES, "--node-rank", "0"))
    second = parsed(spec_of(preset, role, *NODES, "--node-rank", "1", "--headless"))
    assert (first.node_rank, first.headless) == (0, False)
    assert (second.node_rank, second.headless, second.subparser) == (1, True, "serve")
    assert first.nnodes == second.nnodes == 2
    assert first.master_addr == second.master_addr == "10.0.0.7"
    assert (second.model_tag, second.served_model_name) == ("/models/m", first.served_model_name)


def test_a_flag_that_vllm_does_not_know_is_seen_here() -> None:
    with pytest.raises(SystemExit):
        parsed(spec_of(Preset.CPU, Role.DECODE, "--no-such-flag"))
