"""The engines of one host: what ``antiphon up`` would start there, and the same for ``antiphon engine``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from antiphon_server.deploy.site import Host, Site
from antiphon_server.stack.command import ProcessSpec, render
from antiphon_server.stack.models import Model, resolve
from antiphon_server.stack.ports import allocate
from antiphon_server.stack.settings import Role

PREFIX = "/opt/antiphon"
PYTHON = f"{PREFIX}/venv/bin/python"


@dataclass(frozen=True, slots=True)
class PlacedEngine:
    """``spec``: its process as ``antiphon up`` renders it. ``env``: what ``antiphon engine`` is told."""

    spec: ProcessSpec
    env: Mapping[str, str]


def engines_of(site: Site, host: Host) -> list[PlacedEngine]:
    """The engines of a host, prefill first, each with GPUs and ports of its own."""
    settings = site.stack(host)
    # Which ports are free there is not known here, and must not decide: the routers are told them.
    ports = allocate(settings, lambda port: True)
    cores = (site.engines.threads or 1) * max(1, host.engines)
    specs = render(settings, ports, model_of(site.model), Path(), cores)
    return [
        PlacedEngine(replace(spec, argv=(PYTHON, *spec.argv[1:])), _told(site, host, spec, _index(spec)))
        for spec in specs
    ]


def model_of(name: str) -> Model:
    """A model as far as it is known without the host that has it."""
    if PurePosixPath(name).is_absolute():
        return Model(PurePosixPath(name).name, name, local=True, context=None)
    return resolve(name, {}, build=False)


def _index(spec: ProcessSpec) -> int:
    return int(spec.name.rpartition("-")[2])


def _told(site: Site, host: Host, spec: ProcessSpec, index: int) -> dict[str, str]:
    own = site.engines
    flags = [*own.flags, *(own.prefill_flags if spec.role is Role.PREFILL else own.decode_flags)]
    given = {
        "ROLE": spec.role.value,
        "PRESET": site.preset.value,
        "MODEL": site.model,
        "INDEX": str(index),
        "ADDRESS": host.address,
        "PORT": spec.url.rpartition(":")[2],
        "SIDE_CHANNEL_PORT": spec.env["VLLM_NIXL_SIDE_CHANNEL_PORT"],
        "GPUS": spec.env.get("CUDA_VISIBLE_DEVICES"),
        "PREFILL_CACHE": _word(own.prefill_cache),
        "STOCK": _word(own.stock),
        "FAILURE_POLICY": own.failure_policy,
        "THRESHOLD": str(own.threshold),
        "DECODE_TTL": str(own.decode_ttl),
        "MAX_MODEL_LEN": _number(own.max_model_len),
        "BLOCK_SIZE": _number(own.block_size),
        "TENSOR_PARALLEL": str(own.tensor_parallel),
        "DATA_PARALLEL": str(own.data_parallel),
        "KV_SPACE": spec.env.get("VLLM_CPU_KVCACHE_SPACE"),
        "THREADS": _number(own.threads),
        "FLAGS": shlex.join(flags) or None,
    }
    told = {f"ANTIPHON_ENGINE_{name}": value for name, value in given.items() if value is not None}
    caches = {"HF_HOME": f"{site.cache}/huggingface", "VLLM_CACHE_ROOT": f"{site.cache}/vllm"}
    return {**told, **caches, **own.env}


def _word(value: bool) -> str:
    return str(value).lower()


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)
