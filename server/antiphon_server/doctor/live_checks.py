"""Checks of this machine and of a running fleet.

They are made by ``machine.examine(environ)`` and ``fleet.examine(target)``; both give an Examination.
"""

from __future__ import annotations

from antiphon_server.doctor.finding import Check, Realm, Severity

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING
_MACHINE, _FLEET = Realm.MACHINE, Realm.FLEET

PYTHON = Check(
    "python", _ERROR, _MACHINE, "Python is one that Antiphon and vLLM run on", "nothing can be installed"
)
VLLM = Check(
    "vllm-installed",
    _ERROR,
    _MACHINE,
    "vLLM is installed, and not older than exact reuse needs",
    "before 0.31 leases are not reaped and failed receives are lost",
)
NIXL = Check(
    "nixl-installed",
    _ERROR,
    _MACHINE,
    "NIXL is installed, and not older than EFA needs",
    "without it no KV moves between engines",
)
GPUS = Check("gpus", _ERROR, _MACHINE, "there are GPUs, where the preset wants them", "no engine starts")
EFA_DEVICES = Check(
    "efa-devices",
    _ERROR,
    _MACHINE,
    "EFA interfaces are there",
    "KV would go over TCP, far slower, and nothing says so",
)
EFA_NODES = Check(
    "efa-device-files",
    _ERROR,
    _MACHINE,
    "each EFA interface has its device file in /dev/infiniband",
    "a process, or a container, can only use interfaces whose device files it has",
)
LIBFABRIC = Check(
    "libfabric",
    _ERROR,
    _MACHINE,
    "libfabric is installed, 1.21 or later",
    "NIXL's LIBFABRIC backend loads it; its own package does not carry it",
)
PROVIDER = Check(
    "efa-provider",
    _ERROR,
    _MACHINE,
    "libfabric finds the EFA provider with reliable datagrams (fi_info)",
    "NIXL cannot open EFA, whatever devices there are",
)
MEMLOCK = Check(
    "memlock",
    _ERROR,
    _MACHINE,
    "the limit of locked memory is off where EFA is used",
    "registering KV for RDMA locks all of it; beyond the limit the engine ends",
)
SHM = Check(
    "shared-memory",
    _WARNING,
    _MACHINE,
    "/dev/shm is large enough",
    "engines' processes and NIXL share memory there; a container's default of 64 MB ends them",
)
HUGE_PAGES = Check(
    "huge-pages",
    _ERROR,
    _MACHINE,
    "huge pages are reserved where FI_EFA_USE_HUGE_PAGE=1 asks for them",
    "EFA cannot allocate its buffers",
)
INTERFACES = Check(
    "nccl-interface",
    _WARNING,
    _MACHINE,
    "NCCL_SOCKET_IFNAME names what is left out, not one interface",
    "naming one hides EFA",
)
OPEN_FILES = Check(
    "open-files",
    _WARNING,
    _MACHINE,
    "the limit of open files leaves room for connections",
    "a turn needs a connection to its client and one to an engine; at the limit turns fail",
)
PORTS = Check(
    "ports", _WARNING, _MACHINE, "the ports to be used are free", "a process that finds its port taken ends"
)

MACHINE: tuple[Check, ...] = (
    PYTHON,
    VLLM,
    NIXL,
    GPUS,
    EFA_DEVICES,
    EFA_NODES,
    LIBFABRIC,
    PROVIDER,
    MEMLOCK,
    SHM,
    HUGE_PAGES,
    INTERFACES,
    OPEN_FILES,
    PORTS,
)

ROUTER = Check(
    "router-answers", _ERROR, _FLEET, "the router answers, and is ready for turns", "no turn is served"
)
ROUTER_KEY = Check(
    "router-key",
    _ERROR,
    _FLEET,
    "the router takes the keys that were given",
    "what needs them cannot be looked at",
)
ROUTER_WORKER = Check(
    "router-workers",
    _WARNING,
    _FLEET,
    "every engine that the router knows is healthy, shut out by nothing and not draining",
    "turns go to the others, and what KV it keeps is out of reach",
)
ENGINE = Check(
    "engine-answers", _ERROR, _FLEET, "the engine answers and is healthy", "no turn can go through it"
)
ENGINE_KEY = Check(
    "engine-key",
    _ERROR,
    _FLEET,
    "the engine takes the key that was given",
    "the router's legs are refused with 401",
)
ENGINE_STOCK = Check(
    "engine-plugin",
    _WARNING,
    _FLEET,
    "the engine has Antiphon's plug-in",
    "it is served as plain P/D: no reuse between turns, and no lease is released early",
)
ENGINE_PROTOCOL = Check(
    "engine-protocol",
    _ERROR,
    _FLEET,
    "the plug-in speaks this router's protocol",
    "the router takes it for a stock engine",
)
ENGINE_ROLE = Check(
    "engine-role", _ERROR, _FLEET, "the engine has the role it is named for", "its legs fail or stay cold"
)
ENGINE_VERSION = Check(
    "engine-version",
    _ERROR,
    _FLEET,
    "vLLM on the engine is not older than exact reuse needs",
    "before 0.31 leases are not reaped and failed receives are lost",
)
ENGINE_ID = Check(
    "engine-id-running",
    _ERROR,
    _FLEET,
    "engines have ids of their own, new with each start",
    "KV of another engine, or of an earlier life, would be read as this one's",
)
PAIR = Check(
    "pair-equal",
    _ERROR,
    _FLEET,
    "prefill and decode run the same model, versions, dtype, block size and parallelism",
    "KV cannot go between the two: the router does not use them together",
)
REUSE = Check(
    "reuse-declined",
    _WARNING,
    _FLEET,
    "the engine can reuse KV exactly",
    "every turn through it computes its whole prompt",
)
ONE_SIDED = Check(
    "reuse-on-both",
    _ERROR,
    _FLEET,
    "reuse is on for prefill and decode alike",
    "a handle that only one side understands is lost, or waited for",
)
LEASES = Check(
    "leases",
    _WARNING,
    _FLEET,
    "leases outlast the router's renewals, and are not longer than KV is kept",
    "what is kept ends too early, or rests long after a router is gone",
)
CAPACITY = Check(
    "kv-capacity",
    _WARNING,
    _FLEET,
    "decode's KV has room for what is kept",
    "a long conversation cannot rest between its turns, so its next one is computed anew",
)
THRESHOLD = Check(
    "threshold",
    _WARNING,
    _FLEET,
    "prefill pulls even what is not very long",
    "shorter shared prefixes are computed anew",
)
TRANSFERS = Check(
    "transfers-failed",
    _WARNING,
    _FLEET,
    "no transfer of KV has failed since the engine started",
    "each of them is a prompt computed anew, late",
)
LATE = Check(
    "reads-after-lease",
    _WARNING,
    _FLEET,
    "nobody read KV after its lease had ended",
    "the blocks may have held another prompt's KV by then",
)
SIDE_CHANNEL = Check(
    "side-channel-address",
    _ERROR,
    _FLEET,
    "handles name an address that the other engine can reach",
    "no KV moves: every transfer to another machine fails",
)
LEG = Check("probe-leg", _ERROR, _FLEET, "each leg of the probes is answered", "turns fail the same way")
ROUND_TRIP = Check(
    "round-trip",
    _ERROR,
    _FLEET,
    "KV goes from prefill to decode and back to prefill",
    "without it every turn computes its whole prompt",
)
BANDWIDTH = Check(
    "bandwidth",
    _WARNING,
    _FLEET,
    "KV of large models goes faster than TCP carries it",
    "NIXL falls back to TCP without saying so; a long prompt then waits for seconds",
)
STREAM_HANDLE = Check(
    "handle-on-streams",
    _ERROR,
    _FLEET,
    "a stream ends with decode's handle",
    "agents that stream are never reused",
)
EXACT = Check(
    "exact-next-turn",
    _ERROR,
    _FLEET,
    "a next turn with reuse answers as full recomputation does",
    "answers are wrong",
)
REWRITTEN = Check(
    "exact-rewritten-history",
    _ERROR,
    _FLEET,
    "a turn whose history was rewritten answers as full recomputation does",
    "prefill computes on KV of another prompt: answers are plausible and wrong, and both engines keep the "
    "wrong blocks in their prefix caches",
)
EXACT_ROUTER = Check(
    "exact-through-router",
    _ERROR,
    _FLEET,
    "turns of a conversation through the router answer as those without one do",
    "answers are wrong",
)
ROUTER_REUSE = Check(
    "reuse-through-router",
    _WARNING,
    _FLEET,
    "a conversation's next turn through the router finds what its last one left",
    "every turn computes its whole prompt",
)
RELEASED = Check(
    "leases-released",
    _WARNING,
    _FLEET,
    "a lease that is released ends",
    "KV of ended conversations stays until its time is over",
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
)
