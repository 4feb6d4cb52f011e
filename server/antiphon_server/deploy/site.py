"""A fleet over several hosts, as its file says: ``antiphon hosts SITE.yaml``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from antiphon_server.stack.settings import FailurePolicy, Override, Preset, StackSettings

CACHE = "/var/cache/antiphon"
ROUTER_PORT = 8000
MOST_ON_A_HOST = 64
"""Engines of one role: more than a machine has GPUs, fewer than ports between the roles."""
MOST_HOSTS = 1024
MOST_ENGINES = 2048
"""Of a site: every router is told of each."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Host(_Strict):
    """``address``: numeric, as the other hosts reach it. ``prefill``, ``decode``: engines there. ``router``:
    one runs there too. ``gpus``: that engines may use; p5en has 8."""

    address: str
    prefill: int = Field(default=0, ge=0, le=MOST_ON_A_HOST)
    decode: int = Field(default=0, ge=0, le=MOST_ON_A_HOST)
    router: bool = False
    gpus: int = Field(default=8, ge=0)

    @property
    def engines(self) -> int:
        """How many run there."""
        return self.prefill + self.decode


class Engines(_Strict):
    """Of all engines alike. Names and defaults are those of ``antiphon up``.

    ``threads``: of an engine's computing, preset ``cpu`` only. ``flags``: more of vLLM's; ``prefill_flags``
    and ``decode_flags``: of one role. ``env``: more of their environment.
    """

    prefill_cache: bool = True
    stock: bool = False
    failure_policy: FailurePolicy = "recompute"
    threshold: int = Field(default=64, ge=0)
    decode_ttl: int = Field(default=60, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    block_size: int | None = Field(default=None, ge=1)
    tensor_parallel: int = Field(default=1, ge=1)
    data_parallel: int = Field(default=1, ge=1)
    kv_space: int = Field(default=1, ge=1)
    threads: int | None = Field(default=None, ge=1)
    flags: list[str] = []
    prefill_flags: list[str] = []
    decode_flags: list[str] = []
    env: dict[str, str] = {}

    @property
    def width(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel * self.data_parallel


class Site(_Strict):
    """``router``: settings of all routers, by the names of docs/router-reference.md. ``cache``: folder of
    fetched models on each host. ``login``: user to copy files as."""

    model: str
    hosts: dict[str, Host] = Field(min_length=1, max_length=MOST_HOSTS)
    preset: Preset = Field(default=Preset.EFA, strict=False)
    engines: Engines = Engines()
    router: dict[str, Any] = {}
    cache: str = CACHE
    login: str = "ubuntu"

    @property
    def prefill(self) -> int:
        """Prefill engines of all hosts."""
        return sum(host.prefill for host in self.hosts.values())

    @property
    def decode(self) -> int:
        """Decode engines of all hosts."""
        return sum(host.decode for host in self.hosts.values())

    def stack(self, host: Host) -> StackSettings:
        """What ``antiphon up`` would be told on that host."""
        return self._settings(host.address, host.prefill, host.decode)

    def whole(self) -> StackSettings:
        """All engines as those of one stack, to judge what must be alike."""
        address = next(iter(self.hosts.values())).address
        return self._settings(address, self.prefill, self.decode)

    def _settings(self, address: str, prefill: int, decode: int) -> StackSettings:
        own = self.engines
        flags = {"prefill": own.prefill_flags, "decode": own.decode_flags}
        return StackSettings(
            preset=self.preset,
            model=self.model,
            prefill=prefill,
            decode=decode,
            router=False,
            address=address,
            prefill_cache=own.prefill_cache,
            stock=own.stock,
            failure_policy=own.failure_policy,
            threshold=own.threshold,
            decode_ttl=own.decode_ttl,
            max_model_len=own.max_model_len,
            block_size=own.block_size,
            tensor_parallel=own.tensor_parallel,
            data_parallel=own.data_parallel,
            kv_space=own.kv_space,
            overrides={role: Override(flags=(*own.flags, *more)) for role, more in flags.items()},
        )
