"""The exact commands of a stack: settings, ports and model in, processes out. Nothing is started here."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from antiphon_server.stack.flags import read_flags
from antiphon_server.stack.models import Model
from antiphon_server.stack.ports import EnginePorts, Ports
from antiphon_server.stack.presets import COMMON_ENV, COMMON_FLAGS, PRESETS
from antiphon_server.stack.reach import loopback, unspecified
from antiphon_server.stack.settings import Override, Role, StackSettings

CONNECTOR = "AntiphonConnector"
CONNECTOR_MODULE = "antiphon_server.engine.connector"
MIDDLEWARE = "antiphon_server.engine.middleware.AntiphonMiddleware"
EXTENSION = "antiphon_server.engine.extension.LeaseExtension"
STOCK_CONNECTOR = "NixlConnector"
API_SERVER = "vllm.entrypoints.openai.api_server"
SERVE = "vllm.entrypoints.cli.main"
LOOPBACK = "127.0.0.1"
SECRETS = frozenset({"VLLM_API_KEY", "ANTIPHON_ENGINE_KEY", "HF_TOKEN"})
SECRET_FLAGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
"""vLLM's flags that have secrets for values, by long name: the variable that is shown instead."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process. ``env`` is added to the surrounding environment. ``health``: answers 200 when ready."""

    name: str
    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    url: str
    health: str


def render(
    settings: StackSettings, ports: Ports, model: Model, log_dir: Path, cores: int
) -> list[ProcessSpec]:
    """The processes of the stack, engines first. ``cores``: how many CPUs there are to share."""
    engines = [(Role.PREFILL, i, own) for i, own in enumerate(ports.prefill)]
    engines += [(Role.DECODE, i, own) for i, own in enumerate(ports.decode)]
    specs = [
        engine_of(settings, model, log_dir, role, index, own, threads(len(engines), cores), place)
        for place, (role, index, own) in enumerate(engines)
    ]
    return [*specs, router_of(settings, ports.router, specs, log_dir)] if settings.router else specs


def kv_transfer(settings: StackSettings, role: Role, override: Override) -> dict[str, Any]:
    """``--kv-transfer-config`` of an engine. The engine id is left out, so that each start has a new one."""
    preset = PRESETS[settings.preset]
    module = {} if settings.stock else {"kv_connector_module_path": CONNECTOR_MODULE}
    return {
        "kv_connector": STOCK_CONNECTOR if settings.stock else CONNECTOR,
        **module,
        "kv_role": "kv_producer" if role is Role.PREFILL else "kv_consumer",
        "kv_buffer_device": preset.buffer,
        "kv_load_failure_policy": override.failure_policy or settings.failure_policy,
        "kv_connector_extra_config": {
            # On KV that it pulls without a check, vLLM's own connector computes wrong answers.
            "bidirectional_kv_xfer": not settings.stock,
            "decoder_kv_blocks_ttl": settings.decode_ttl,
            "kv_recompute_threshold": settings.threshold,
            **preset.kv_extra,
            **override.kv_extra,
        },
    }


def override_of(settings: StackSettings, role: Role, name: str) -> Override:
    """The role's override with the engine's own on top."""
    both = [settings.overrides[key] for key in (role.value, name) if key in settings.overrides]
    return Override(
        flags=tuple(flag for one in both for flag in one.flags),
        env={key: value for one in both for key, value in one.env.items()},
        kv_extra={key: value for one in both for key, value in one.kv_extra.items()},
        failure_policy=next((one.failure_policy for one in reversed(both) if one.failure_policy), None),
        prefix_cache=next((one.prefix_cache for one in reversed(both) if one.prefix_cache is not None), None),
    )


def threads(engines: int, cores: int) -> int:
    """Compute threads of each engine: an equal share of the cores, at least one."""
    return max(1, cores // engines)


def shell_lines(specs: Iterable[ProcessSpec]) -> list[str]:
    """The commands to paste into a shell, with their environment; secrets are replaced by their variable."""
    return [f"# {spec.name}: {spec.url}\n{_shell(spec)}" for spec in specs]


def gpus_of(settings: StackSettings, flags: Sequence[str] = ()) -> int:
    """GPUs of one engine on this node. ``flags``: its own, which may spread it over several nodes."""
    own = read_flags(flags)
    local = own.count("data-parallel-size-local", settings.data_parallel)
    stages, nodes = own.count("pipeline-parallel-size", 1), own.count("nnodes", 1)
    return max(1, settings.tensor_parallel * stages * local // nodes)


def engine_of(
    settings: StackSettings,
    model: Model,
    log_dir: Path,
    role: Role,
    index: int,
    ports: EnginePorts,
    compute_threads: int,
    place: int = 0,
) -> ProcessSpec:
    """One engine. ``place``: among those of this node, which take its GPUs in turn."""
    preset = PRESETS[settings.preset]
    name = f"{role.value}-{index}"
    override = override_of(settings, role, name)
    address = settings.address or LOOPBACK
    host = settings.engine_host or address
    context = settings.max_model_len or model.context
    cached = override.prefix_cache
    if cached is None:
        cached = settings.prefill_cache or role is not Role.PREFILL
    dtype = model.dtype if preset.dtype else None
    # Only vLLM's own command serves the further nodes of an engine, which have no API server.
    headless = "--headless" in override.flags
    entry = [SERVE, "serve", model.path] if headless else [API_SERVER, "--model", model.path]
    argv: list[str] = [sys.executable, "-m", *entry]
    argv += ["--served-model-name", model.name, "--host", host, "--port", str(ports.http)]
    argv += ["--max-model-len", str(context)] if context else []
    argv += ["--dtype", dtype] if dtype else []
    argv += ["--block-size", str(settings.block_size or preset.block_size), *preset.flags, *COMMON_FLAGS]
    argv += ["--tool-call-parser", model.tool_parser]
    argv += ["--chat-template", str(model.chat_template)] if model.chat_template else []
    argv += ["--tensor-parallel-size", str(settings.tensor_parallel)] if settings.tensor_parallel > 1 else []
    argv += ["--data-parallel-size", str(settings.data_parallel)] if settings.data_parallel > 1 else []
    argv += ["--enable-prefix-caching" if cached else "--no-enable-prefix-caching"]
    argv += [] if settings.stock else ["--middleware", MIDDLEWARE, "--worker-extension-cls", EXTENSION]
    argv += ["--kv-transfer-config", json.dumps(kv_transfer(settings, role, override)), *override.flags]
    env = {
        **COMMON_ENV,
        **preset.env,
        **_network_env(settings),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(ports.side_channel),
        **({"HF_HUB_OFFLINE": "1"} if model.local else {}),
        **(
            _gpu_env(settings, gpus_of(settings, override.flags), place)
            if preset.gpus
            else _cpu_env(settings, compute_threads)
        ),
        **({"VLLM_API_KEY": settings.key} if settings.key else {}),
        **override.env,
    }
    url = f"http://{_in_url(address if unspecified(host) else host)}:{ports.http}"
    return ProcessSpec(name, role, tuple(argv), env, log_dir / f"{name}.log", url, f"{url}/health")


def _cpu_env(settings: StackSettings, compute_threads: int) -> dict[str, str]:
    return {"VLLM_CPU_KVCACHE_SPACE": str(settings.kv_space), "OMP_NUM_THREADS": str(compute_threads)}


def _gpu_env(settings: StackSettings, width: int, place: int) -> dict[str, str]:
    if settings.gpus == ():
        return {}
    own = range(place * width, (place + 1) * width)
    named = [str(i) for i in own] if settings.gpus is None else settings.gpus[own.start : own.stop]
    return {"CUDA_VISIBLE_DEVICES": ",".join(named)}


def _network_env(settings: StackSettings) -> Mapping[str, str]:
    preset = PRESETS[settings.preset]
    if settings.address is None or loopback(settings.address):
        return preset.alone
    # GPUs are read over NICs that have no such name.
    found = {} if preset.gpus or settings.interface is None else {"UCX_NET_DEVICES": settings.interface}
    return {**preset.apart, **found}


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def router_of(
    settings: StackSettings,
    port: int,
    engines: Sequence[ProcessSpec],
    log_dir: Path,
    *,
    name: str = "router",
    env: Mapping[str, str] = MappingProxyType({}),
) -> ProcessSpec:
    """A router over ``engines``. ``env`` wins over the settings'."""
    argv = [sys.executable, "-m", "antiphon_server.cli", "router"]
    argv += ["--host", settings.host, "--port", str(port)]
    for engine in engines:
        argv += [f"--{engine.role.value}", engine.url]
    # Turns in flight get this long when the stack stops.
    grace = {"ANTIPHON_SHUTDOWN_GRACE": f"{settings.stop_grace / 3:g}"}
    own = {
        "PYTHONUNBUFFERED": "1",
        **grace,
        **({"ANTIPHON_ENGINE_KEY": settings.key} if settings.key else {}),
    }
    reach = LOOPBACK if unspecified(settings.host) else _in_url(settings.host)
    url = f"http://{reach}:{port}"
    return ProcessSpec(
        name,
        Role.ROUTER,
        tuple(argv),
        {**own, **settings.router_env, **env},
        log_dir / f"{name}.log",
        url,
        f"{url}/ready",
    )


def _shell(spec: ProcessSpec) -> str:
    env = [
        f'{key}="${key}"' if key in SECRETS else f"{key}={shlex.quote(value)}"
        for key, value in sorted(spec.env.items())
    ]
    words = _without_secrets(spec.argv)
    lines: list[str] = []
    for word in words:
        # A flag starts a line, its values follow on it.
        if word.startswith("--") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return " \\\n    ".join([" ".join(["env", *env[:1]]), *env[1:], *lines])


def _without_secrets(argv: Sequence[str]) -> list[str]:
    """The words as a shell takes them; the values of a secret flag are its variable, once."""
    shown: list[str] = []
    hidden: str | None = None
    for word in argv:
        if word.startswith("-") and not word[1:2].isdigit():
            flag, equals, _ = word.partition("=")
            hidden = secret_of(flag)
            shown.append(f'{flag}="${hidden}"' if hidden and equals else shlex.quote(word))
        elif hidden is None:
            shown.append(shlex.quote(word))
        elif not shown[-1].endswith(f'"${hidden}"'):
            shown.append(f'"${hidden}"')
    return shown


def secret_of(flag: str) -> str | None:
    """The variable of a flag that has a secret for its value."""
    # vLLM takes underscores for dashes, and as much of a name as no other begins with.
    name = flag.removeprefix("--").replace("_", "-")
    if not flag.startswith("--") or len(name) < 4:
        return None
    return next((variable for full, variable in SECRET_FLAGS.items() if full.startswith(name)), None)
