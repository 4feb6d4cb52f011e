"""What must be equal on all engines that hand KV to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from antiphon_server.doctor.declared.declared import HIDDEN, Declared, Engine
from antiphon_server.doctor.declared.rule import Hit, Rule, rule
from antiphon_server.doctor.finding import Severity
from antiphon_server.stack.settings import Role

SHAPE = "The shape of KV enters the handshake: the two sides refuse each other, or read it wrongly."


@dataclass(frozen=True, slots=True)
class Equal:
    """One thing that must be equal. ``name``: as a reader knows it from the command line. ``value``: of an
    engine, None where it says nothing, which is a value of its own unless ``lenient``."""

    word: str
    name: str
    value: Callable[[Engine], str | None]
    why: str = SHAPE
    severity: Severity = Severity.ERROR
    lenient: bool = False


def _flag(name: str, default: str | None = None) -> Callable[[Engine], str | None]:
    return lambda engine: engine.flags.get(name) or default


def _extra(name: str, default: object) -> Callable[[Engine], str | None]:
    return lambda engine: str(engine.extra.get(name, default)) if engine.flags.transfer is not None else None


def _env(name: str) -> Callable[[Engine], str | None]:
    return lambda engine: engine.env.get(name)


def _version(name: str) -> Callable[[Engine], str | None]:
    return lambda engine: dict(engine.box.versions).get(name)


EQUAL: tuple[Equal, ...] = (
    Equal("same-model", "--model", lambda engine: engine.model, "KV of one model is noise to another."),
    Equal(
        "same-tensor-parallel",
        "--tensor-parallel-size",
        _flag("tensor-parallel-size", "1"),
        "With reuse KV goes both ways; an engine with another tensor parallelism crashes on what comes back.",
    ),
    Equal(
        "same-block-size",
        "--block-size",
        _flag("block-size"),
        "Handles are compared block by block; digests of other blocks are never equal, so nothing is reused.",
    ),
    Equal("same-dtype", "--dtype", _flag("dtype", "auto")),
    Equal("same-kv-cache-dtype", "--kv-cache-dtype", _flag("kv-cache-dtype", "auto")),
    Equal("same-attention-backend", "--attention-backend", _flag("attention-backend")),
    Equal("same-kv-layout", "VLLM_KV_CACHE_LAYOUT", _env("VLLM_KV_CACHE_LAYOUT")),
    Equal(
        "same-hash",
        "--prefix-caching-hash-algo",
        _flag("prefix-caching-hash-algo", "sha256"),
        "Prefill compares its own block hashes with decode's: hashed in two ways, none is ever equal.",
    ),
    Equal(
        "same-context",
        "--max-model-len",
        _flag("max-model-len"),
        "A turn that prefill takes is refused by decode, or the other way round.",
    ),
    Equal(
        "same-backends",
        "backends",
        lambda engine: (
            ", ".join(engine.backends) or "UCX (default)" if engine.flags.transfer is not None else None
        ),
        "NIXL agents without a backend in common cannot transfer.",
        lenient=True,
    ),
    Equal(
        "same-threshold",
        "kv_recompute_threshold",
        _extra("kv_recompute_threshold", 64),
        "The router plans with one threshold; an engine with another fetches what was to be computed.",
        Severity.WARNING,
        lenient=True,
    ),
    Equal(
        "same-vllm",
        "vLLM",
        _version("vllm"),
        "The version enters the handshake: engines of two versions refuse each other.",
        lenient=True,
    ),
    Equal(
        "same-nixl",
        "nixl",
        _version("nixl"),
        "The version enters the handshake: engines of two versions refuse each other.",
        lenient=True,
    ),
)


def unequal(equal: Equal, fleet: Declared) -> Iterator[Hit]:
    """Told once, with who has which. Prefill engines among each other may differ only as long as each pair
    agrees, which is the same as all of them."""
    values: dict[str | None, list[str]] = {}
    for engine in fleet.engines:
        value = equal.value(engine)
        if (value is not None and value.startswith(HIDDEN)) or (value is None and equal.lenient):
            continue
        values.setdefault(value, []).append(engine.subject)
    if len(values) < 2 or not (any(fleet.of(Role.PREFILL)) and any(fleet.of(Role.DECODE))):
        return
    told = "; ".join(f"{value or 'not given'} on {', '.join(who)}" for value, who in values.items())
    yield Hit("prefill and decode", f"{equal.name} differs: {told}", f"give all the same {equal.name}")


@rule(
    "both-roles",
    Severity.NOTE,
    "prefill and decode engines are both there, so that they can be compared",
    "Most faults are between the two sides.",
)
def both_roles(fleet: Declared) -> Iterator[Hit]:
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if any(fleet.of(role)) and not any(fleet.of(other)):
            what = f"no {other} engine is declared beside it, so nothing was compared"
            subject = ", ".join(engine.subject for engine in fleet.of(role))
            yield Hit(subject, what, f"name the {other} engines' files in the same call")


def _rule(equal: Equal) -> Rule:
    line = f"{equal.name} is equal on prefill and decode"
    return rule(equal.word, equal.severity, line, equal.why, equal.name)(lambda fleet: unequal(equal, fleet))


RULES = (both_roles, *map(_rule, EQUAL))
