"""Sweeps by name: the announcement's two, and one for this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon_server.bench.sweep.plan import Plan
from antiphon_server.counters import Page
from antiphon_server.protocol import Info

_LENGTHS = (2000, 4000, 8000, 12000, 16000, 20000, 24000)


@dataclass(frozen=True, slots=True)
class Published:
    """How the announcement's engines were started. ``flags``: of both; ``prefill_flags``: of prefill
    besides."""

    model: str
    machines: str
    versions: str
    tensor_parallel: int
    threshold: int
    flags: tuple[str, ...]
    prefill_flags: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """For people who start such a fleet."""
        return (
            f"{self.model} on {self.machines}, {self.versions}",
            f"both: {' '.join(self.flags)}",
            f"prefill besides: {' '.join(self.prefill_flags)}",
        )

    def differences(self, info: Info | None, prefill: Page) -> list[str]:
        """Where a fleet is another one, as far as its engines tell. ``prefill``: one prefill engine's
        metrics."""
        found: list[str] = []
        if info is None:
            return ["the engines do not say what they are: they lack Antiphon's plug-in"]
        if self.model.lower() not in info.model.lower():
            found.append(f"model {info.model}: the announcement has {self.model}")
        if info.tensor_parallel != self.tensor_parallel:
            wanted = f"--tensor-parallel-size {self.tensor_parallel}"
            found.append(f"tensor parallel size {info.tensor_parallel}: start the engines with {wanted}")
        if info.threshold != self.threshold:
            found.append(
                f"kv_recompute_threshold {info.threshold}: the announcement has {self.threshold} in "
                "kv_connector_extra_config"
            )
        if not info.reuse:
            found.append(
                f"decode cannot reuse ({info.reuse_reason}): set bidirectional_kv_xfer on both sides"
            )
        if prefill.caching is not False:
            known = "is on" if prefill.caching else "may be on"
            found.append(f"prefill's prefix cache {known}: start prefill with --no-enable-prefix-caching")
        return found


@dataclass(frozen=True, slots=True)
class Preset:
    """``model``: of a stack of our own; None: the fleet is elsewhere. ``published``: whose figures it is to
    be held against."""

    plan: Plan
    model: str | None = None
    published: Published | None = None


def _published(model: str) -> Published:
    return Published(
        model=model,
        machines="2 x p5en.48xlarge, one prefill and one decode engine",
        versions="vLLM 0.29, nixl 1.4.1",
        tensor_parallel=8,
        threshold=64,
        flags=(
            "--tensor-parallel-size 8 --max-model-len 32768 --max-num-seqs 8",
            'kv_connector_extra_config {"bidirectional_kv_xfer": true, "backends": ["LIBFABRIC"],',
            '"kv_recompute_threshold": 64, "decoder_kv_blocks_ttl": 480}',
        ),
        prefill_flags=("--no-enable-prefix-caching",),
    )


PRESETS: Mapping[str, Preset] = {
    "cpu": Preset(
        Plan(
            lengths=(1000, 2000, 4000, 8000),
            conversations=1,
            turns=3,
            new=150,
            answer=80,
            clients=1,
            active=1,
            repeat=4,
            settle=0.0,
        ),
        model="tiny",
    ),
    "announcement-qwen3-32b": Preset(Plan(_LENGTHS), published=_published("Qwen3-32B")),
    "announcement-glm-5": Preset(Plan(_LENGTHS[:-1]), published=_published("GLM-5-FP8")),
}


def preset_of(name: str) -> Preset:
    """By its name.

    Raises:
        ValueError: there is none.
    """
    if name not in PRESETS:
        raise ValueError(f"--preset {name!r} is not known: take one of {', '.join(PRESETS)}")
    return PRESETS[name]
