"""What one engine's own command line and environment must say."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon_server.doctor.declared.declared import EXTRA, HIDDEN, Declared
from antiphon_server.doctor.declared.rule import Hit, rule
from antiphon_server.doctor.finding import Severity
from antiphon_server.engine.support import HASHES_WITH_FIXED_SEED
from antiphon_server.environment import ENGINE_PREFIX, ENGINE_VARIABLES, OF_UNITS, meant
from antiphon_server.stack.command import CONNECTOR, CONNECTOR_MODULE, EXTENSION, MIDDLEWARE
from antiphon_server.stack.settings import Role
from antiphon_server.versions import MINIMUM_NIXL, MINIMUM_VLLM, numbers, text

LONG_KEEP_ALIVE_S = 60
UNCHECKED_OPTION = "antiphon_unsafe_skip_prefix_check"
TOP_LEVEL = ("kv_load_failure_policy", "kv_role", "kv_buffer_device", "engine_id", "kv_connector")
ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


@rule(
    "kv-transfer",
    Severity.ERROR,
    "each engine has a KV transfer configuration that can be read",
    "Without it prefill hands nothing over: decode computes every prompt again, or no engine starts.",
    thing="--kv-transfer-config",
)
def kv_transfer(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        if engine.flags.malformed:
            what = f"--kv-transfer-config cannot be read: {engine.flags.malformed}"
            yield Hit(engine.subject, what, "start the engine by 'antiphon engine', or correct the JSON")
        elif engine.flags.transfer is None:
            yield Hit(engine.subject, "no --kv-transfer-config", "start the engine by 'antiphon engine'")


@rule(
    "engine-settings",
    Severity.WARNING,
    f"each variable {ENGINE_PREFIX}... is one that 'antiphon engine' reads",
    "A variable that nothing reads changes nothing: the engine runs with the default instead.",
)
def engine_settings(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        for name in engine.env.keys() - ENGINE_VARIABLES - OF_UNITS:
            near = meant(name, ENGINE_VARIABLES)
            if near is None and not name.startswith(ENGINE_PREFIX):
                continue
            remedy = f"did you mean {near}?" if near else "remove it; 'antiphon engine --help' names all"
            yield Hit(engine.subject, f"{name} is not read", remedy)


@rule(
    "misplaced-setting",
    Severity.ERROR,
    f"nothing stands in {EXTRA} that is only read beside it",
    "vLLM reads it at the top level only; inside the extra configuration it is silently ignored.",
)
def misplaced_setting(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        for name in TOP_LEVEL:
            if name in engine.extra and name != "engine_id":
                what = f"{name} = {engine.extra[name]!r} is inside {EXTRA}"
                yield Hit(
                    engine.subject,
                    what,
                    f"remove it there, and give {name} one level up, beside kv_connector",
                )


@rule(
    "engine-id",
    Severity.ERROR,
    "engine_id is left to chance",
    "A restarted engine under its old id is taken for the one before: handles of lost KV look valid.",
    thing="engine_id",
)
def engine_id(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        fixed = engine.transfer.get("engine_id") or engine.extra.get("engine_id")
        if fixed:
            yield Hit(
                engine.subject, f"engine_id is fixed to {fixed!r}", "remove it: each start draws a new one"
            )


@rule(
    "failure-policy",
    Severity.WARNING,
    "kv_load_failure_policy is recompute on prefill and decode",
    "A pull that fails or is declined answers 500 instead of computing the prompt: the turn is tried again "
    "from its start, and fails when the attempts are used up.",
    thing="kv_load_failure_policy",
)
def failure_policy(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        policy = engine.transfer.get("kv_load_failure_policy")
        if engine.flags.transfer is None or policy == "recompute":
            continue
        what = "kv_load_failure_policy is not given, so it is fail" if policy is None else ""
        what = what or f"kv_load_failure_policy is {policy!r}"
        yield Hit(engine.subject, what, 'set "kv_load_failure_policy": "recompute" beside kv_connector')


@rule(
    "kv-role",
    Severity.ERROR,
    "kv_role fits what the engine does",
    "Prefill produces KV and decode consumes it; the other way round nothing is handed over.",
    thing="kv_role",
)
def kv_role(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        role = engine.transfer.get("kv_role")
        if engine.flags.transfer is None or role == ROLES[engine.role]:
            continue
        severity = Severity.NOTE if role == "kv_both" else None
        old = " (deprecated)" if role == "kv_both" else ""
        what = f"kv_role is {role!r}{old} on a {engine.role} engine"
        yield Hit(engine.subject, what, f'set "kv_role": "{ROLES[engine.role]}"', severity)


@rule(
    "stock-reuse",
    Severity.ERROR,
    "bidirectional_kv_xfer is on only with Antiphon's connector",
    "vLLM's own connector never checks that the KV it pulls belongs to the prompt: answers are silently "
    "computed on another history, and both prefix caches are spoilt.",
    thing="bidirectional_kv_xfer",
)
def stock_reuse(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        connector = engine.transfer.get("kv_connector")
        if engine.reuses and connector != CONNECTOR:
            what = f"bidirectional_kv_xfer is on with kv_connector {connector!r}"
            yield Hit(engine.subject, what, f"use {CONNECTOR} ('antiphon engine'), or turn the flag off")


@rule(
    "unchecked-reuse",
    Severity.ERROR,
    "the check of what is pulled is not turned off",
    "The engine computes on KV of other prompts; the switch is there for tests alone.",
    thing=UNCHECKED_OPTION,
)
def unchecked_reuse(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        if engine.extra.get(UNCHECKED_OPTION):
            yield Hit(engine.subject, f"{UNCHECKED_OPTION} is on", "remove it")


@rule(
    "reuse-flag",
    Severity.ERROR,
    "bidirectional_kv_xfer is on for both sides",
    "A handle that is sent to an engine without the flag hangs, and Antiphon's connector does not start "
    "without it.",
    thing="bidirectional_kv_xfer",
)
def reuse_flag(fleet: Declared) -> Iterator[Hit]:
    ours = [engine for engine in fleet.engines if engine.transfer.get("kv_connector") == CONNECTOR]
    some = any(engine.reuses for engine in fleet.engines)
    for engine in fleet.engines:
        if engine.flags.transfer is not None and not engine.reuses and (engine in ours or some):
            what = "bidirectional_kv_xfer is not on" + (", but elsewhere it is" if some else "")
            yield Hit(engine.subject, what, f'set "bidirectional_kv_xfer": true in {EXTRA} of every engine')


@rule(
    "plug-in",
    Severity.ERROR,
    "connector, middleware and worker extension come together",
    "Without the middleware no handle comes back on streams; without the extension no lease is renewed or "
    "released; without the module path vLLM does not know the connector.",
)
def plug_in(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        if engine.transfer.get("kv_connector") != CONNECTOR:
            continue
        wanted = {
            f"--middleware {MIDDLEWARE}": MIDDLEWARE in engine.flags.all("middleware"),
            f"--worker-extension-cls {EXTENSION}": engine.flags.get("worker-extension-cls") == EXTENSION,
            f'"kv_connector_module_path": "{CONNECTOR_MODULE}"': engine.transfer.get(
                "kv_connector_module_path"
            )
            == CONNECTOR_MODULE,
        }
        missing = [words for words, there in wanted.items() if not there]
        if missing:
            yield Hit(engine.subject, f"{' and '.join(missing)} missing", "add it, or use 'antiphon engine'")


@rule(
    "hash-seed",
    Severity.ERROR,
    "block hashes are the same in every process",
    "Prefill compares its own block hashes with those in decode's handle. With a random seed none is ever "
    "equal, so nothing is reused.",
    thing="PYTHONHASHSEED",
)
def hash_seed(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        algorithm = engine.flags.get("prefix-caching-hash-algo") or "sha256"
        if engine.reuses and algorithm not in HASHES_WITH_FIXED_SEED and not engine.env.get("PYTHONHASHSEED"):
            what = f"--prefix-caching-hash-algo {algorithm} without PYTHONHASHSEED"
            yield Hit(engine.subject, what, "use sha256, or set PYTHONHASHSEED to one value on all engines")
    seeds = {engine.subject: engine.env.get("PYTHONHASHSEED") for engine in fleet.engines}
    if len({seed for seed in seeds.values() if seed}) > 1:
        subject = ", ".join(subject for subject, seed in seeds.items() if seed)
        what = f"PYTHONHASHSEED differs: {', '.join(sorted({seed for seed in seeds.values() if seed}))}"
        yield Hit(subject, what, "set one value on all engines, or leave it out with sha256")


@rule(
    "keep-alive",
    Severity.WARNING,
    "engines keep idle connections open long enough",
    "vLLM closes an idle connection after 5 s; the router's next leg on it is then lost on the way.",
    thing="VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
)
def keep_alive(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        given = engine.env.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
        if given is not None and given.startswith(HIDDEN):
            continue
        if given is None or not given.isdigit() or int(given) < LONG_KEEP_ALIVE_S:
            what = f"VLLM_HTTP_TIMEOUT_KEEP_ALIVE is {given or 'not set, so 5'}"
            yield Hit(engine.subject, what, "set VLLM_HTTP_TIMEOUT_KEEP_ALIVE=600")


@rule(
    "context-parallel",
    Severity.ERROR,
    "no context parallelism where KV is reused",
    "KV of a block is then spread over ranks and cannot be cut to the common prefix: reuse is declined.",
)
def context_parallel(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        for name in ("prefill-context-parallel-size", "decode-context-parallel-size"):
            if engine.reuses and engine.flags.count(name, 1) > 1:
                what = f"--{name} {engine.flags.get(name)} together with reuse"
                yield Hit(engine.subject, what, f"remove --{name}, use --tensor-parallel-size")


@rule(
    "vllm-version",
    Severity.ERROR,
    f"vLLM is {text(MINIMUM_VLLM)} or later, nixl {text(MINIMUM_NIXL)} or later with LIBFABRIC",
    "Earlier vLLM loses leases and failed receives, so that recycled blocks are read; earlier nixl deadlocks "
    "over LIBFABRIC.",
)
def vllm_version(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        for name, version in engine.box.versions:
            found = numbers(version)
            least = {"vllm": MINIMUM_VLLM, "nixl": MINIMUM_NIXL if engine.fabric else ()}.get(name, ())
            if found and engine.reuses and found < least:
                remedy = f"use {name} {text(least)} or later, the same on all"
                yield Hit(engine.subject, f"{name} {version}", remedy)


RULES = (
    kv_transfer,
    engine_settings,
    misplaced_setting,
    engine_id,
    failure_policy,
    kv_role,
    stock_reuse,
    unchecked_reuse,
    reuse_flag,
    plug_in,
    hash_seed,
    keep_alive,
    context_parallel,
    vllm_version,
)
