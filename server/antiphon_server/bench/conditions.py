"""Under which conditions figures were measured: they mean nothing without."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from antiphon_server.bench.site import Site


@dataclass(frozen=True, slots=True)
class Conditions:
    """``load``: of the machine in the minute before, without our own processes where we started them.
    ``prefill_cache``: what prefill's own prefix cache could contribute."""

    when: str
    cpu: str
    cores: int
    load: float
    model: str
    dtype: str
    block_size: int | None
    vllm: str
    nixl: str
    engines: str
    prefill_cache: str

    def lines(self) -> tuple[str, str]:
        """Two lines for captions: the machine and software, the model and set-up."""
        return (
            f"{self.cores} cores of {self.cpu} · vLLM {self.vllm} · NIXL {self.nixl}",
            f"{self.model}, {self.dtype}, block {self.block_size} · {self.engines} · "
            f"prefill's own prefix cache {self.prefill_cache}",
        )


def conditions(site: Site, *, load: float, prefill_cache: str) -> Conditions:
    """Of this machine and the engines of ``site``."""
    info = site.engines.info()
    return Conditions(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        load=round(load, 2),
        model=site.model,
        dtype=site.dtype or "dtype unknown",
        block_size=info.block_size if info else None,
        vllm=info.vllm if info else "unknown",
        nixl=info.nixl if info else "unknown",
        engines=f"{len(site.engines.prefill)} prefill + {len(site.engines.decode)} decode",
        prefill_cache=prefill_cache,
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As the kernel names it, or the architecture."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.replace("(R)", "").replace("(TM)", "").split())
    return platform.machine()
