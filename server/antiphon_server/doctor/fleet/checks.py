"""What is checked of a running fleet, by looking and by probes."""

from __future__ import annotations

from antiphon_server.doctor.finding import Check, Severity

ROUTER = Check(
    "router-answers",
    Severity.ERROR,
    "the router answers, and is ready for turns",
    "no turn is served",
)
ROUTER_KEY = Check(
    "router-key",
    Severity.ERROR,
    "the router takes the keys that were given",
    "what needs them cannot be looked at",
)
ROUTER_WORKER = Check(
    "router-workers",
    Severity.WARNING,
    "every engine that the router knows is healthy, shut out by nothing and not draining",
    "turns go to the others, and what KV it keeps is out of reach",
)
ENGINE = Check(
    "engine-answers",
    Severity.ERROR,
    "the engine answers and is healthy",
    "no turn can go through it",
)
ENGINE_KEY = Check(
    "engine-key",
    Severity.ERROR,
    "the engine takes the key that was given",
    "the router's legs are refused with 401",
)
ENGINE_STOCK = Check(
    "engine-plugin",
    Severity.WARNING,
    "the engine has Antiphon's plug-in",
    "it is served as plain P/D: no reuse between turns, and no lease is released early",
)
ENGINE_PROTOCOL = Check(
    "engine-protocol",
    Severity.ERROR,
    "the plug-in speaks this router's protocol",
    "the router takes it for a stock engine",
)
ENGINE_ROLE = Check(
    "engine-role",
    Severity.ERROR,
    "the engine has the role it is named for",
    "its legs fail or stay cold",
)
ENGINE_VERSION = Check(
    "engine-version",
    Severity.ERROR,
    "vLLM on the engine is not older than exact reuse needs",
    "before 0.31 leases are not reaped and failed receives are lost",
)
ENGINE_ID = Check(
    "engine-id-running",
    Severity.ERROR,
    "engines have ids of their own, new with each start",
    "KV of another engine, or of an earlier life, would be read as this one's",
)
PAIR = Check(
    "pair-equal",
    Severity.ERROR,
    "prefill and decode run the same model, versions, dtype, block size and parallelism",
    "KV cannot go between the two: the router does not use them together",
)
REUSE = Check(
    "reuse-declined",
    Severity.WARNING,
    "the engine can reuse KV exactly",
    "every turn through it computes its whole prompt",
)
ONE_SIDED = Check(
    "reuse-on-both",
    Severity.ERROR,
    "reuse is on for prefill and decode alike",
    "a handle that only one side understands is lost, or waited for",
)
LEASES = Check(
    "leases",
    Severity.WARNING,
    "leases outlast the router's renewals, and are not longer than KV is kept",
    "what is kept ends too early, or rests long after a router is gone",
)
CAPACITY = Check(
    "kv-capacity",
    Severity.WARNING,
    "decode's KV has room for what is kept",
    "a long conversation cannot rest between its turns, so its next one is computed anew",
)
THRESHOLD = Check(
    "threshold",
    Severity.WARNING,
    "prefill pulls even what is not very long",
    "shorter shared prefixes are computed anew",
)
TRANSFERS = Check(
    "transfers-failed",
    Severity.WARNING,
    "no transfer of KV has failed since the engine started",
    "each of them is a prompt computed anew, late",
)
LATE = Check(
    "reads-after-lease",
    Severity.WARNING,
    "nobody read KV after its lease had ended",
    "the blocks may have held another prompt's KV by then",
)
SIDE_CHANNEL = Check(
    "side-channel-address",
    Severity.ERROR,
    "handles name an address that the other engine can reach",
    "no KV moves: every transfer to another machine fails",
)
LEG = Check("probe-leg", Severity.ERROR, "each leg of the probes is answered", "turns fail the same way")
ROUND_TRIP = Check(
    "round-trip",
    Severity.ERROR,
    "KV goes from prefill to decode and back to prefill",
    "without it every turn computes its whole prompt",
)
BANDWIDTH = Check(
    "bandwidth",
    Severity.WARNING,
    "KV of large models goes faster than TCP carries it",
    "NIXL falls back to TCP without saying so; a long prompt then waits for seconds",
)
STREAM_HANDLE = Check(
    "handle-on-streams",
    Severity.ERROR,
    "a stream ends with decode's handle",
    "agents that stream are never reused",
)
EXACT = Check(
    "exact-next-turn",
    Severity.ERROR,
    "a next turn with reuse answers as full recomputation does",
    "answers are wrong",
)
REWRITTEN = Check(
    "exact-rewritten-history",
    Severity.ERROR,
    "a turn whose history was rewritten answers as full recomputation does",
    "prefill computes on KV of another prompt: answers are plausible and wrong, and both engines keep the "
    "wrong blocks in their prefix caches",
)
EXACT_ROUTER = Check(
    "exact-through-router",
    Severity.ERROR,
    "turns of a conversation through the router answer as those without one do",
    "answers are wrong",
)
ROUTER_REUSE = Check(
    "reuse-through-router",
    Severity.WARNING,
    "a conversation's next turn through the router finds what its last one left",
    "every turn computes its whole prompt",
)
RELEASED = Check(
    "leases-released",
    Severity.WARNING,
    "a lease that is released ends",
    "KV of ended conversations stays until its time is over",
)
IN_TIME = Check(
    "in-time",
    Severity.ERROR,
    "all of it is examined in the time that is given",
    "what was not reached may be wrong as well",
)

FLEET: tuple[Check, ...] = (
    ROUTER,
    ROUTER_KEY,
    ROUTER_WORKER,
    ENGINE,
    ENGINE_KEY,
    ENGINE_STOCK,
    ENGINE_PROTOCOL,
    ENGINE_ROLE,
    ENGINE_VERSION,
    ENGINE_ID,
    PAIR,
    REUSE,
    ONE_SIDED,
    LEASES,
    CAPACITY,
    THRESHOLD,
    TRANSFERS,
    LATE,
    SIDE_CHANNEL,
    LEG,
    ROUND_TRIP,
    BANDWIDTH,
    STREAM_HANDLE,
    EXACT,
    REWRITTEN,
    EXACT_ROUTER,
    ROUTER_REUSE,
    RELEASED,
    IN_TIME,
)
