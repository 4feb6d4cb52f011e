"""What LIBFABRIC over EFA needs of flags, environment and container. Read, not run on such hardware."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon_server.doctor.declared.box import UNLIMITED
from antiphon_server.doctor.declared.declared import Declared, Engine
from antiphon_server.doctor.declared.rule import Hit, rule
from antiphon_server.doctor.finding import Severity

RDMA = {"FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_ENABLE_SHM_TRANSFER": "0"}
LEAST_BLOCK = 64
LEAST_SHM = 1 << 30


def hides_efa(interface: str) -> bool:
    """``NCCL_SOCKET_IFNAME`` that names interfaces instead of leaving some out."""
    return bool(interface) and not interface.startswith("^")


def _fabric(fleet: Declared) -> Iterator[Engine]:
    return (engine for engine in fleet.engines if engine.fabric)


@rule(
    "transfer-backend",
    Severity.ERROR,
    "engines on EFA name LIBFABRIC as NIXL's backend",
    "NIXL takes UCX otherwise, which silently falls back to TCP: some hundred times slower.",
    thing="backends",
)
def transfer_backend(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        if engine.backends != ("LIBFABRIC",):
            what = f"backends is {list(engine.backends) or 'not given'}, but the engine is meant for EFA"
            yield Hit(engine.subject, what, 'set "backends": ["LIBFABRIC"] in kv_connector_extra_config')


@rule(
    "fi-provider",
    Severity.ERROR,
    "FI_PROVIDER is efa where LIBFABRIC is used",
    "libfabric picks the first provider that fits, which may be TCP.",
    thing="FI_PROVIDER",
)
def fi_provider(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        if (provider := engine.env.get("FI_PROVIDER")) != "efa":
            yield Hit(engine.subject, f"FI_PROVIDER is {provider or 'not set'}", "set FI_PROVIDER=efa")


@rule(
    "efa-rdma",
    Severity.WARNING,
    "device RDMA is on and shared memory off for EFA, KV is laid out by heads, blocks are large",
    "LIBFABRIC posts a descriptor for each piece of KV: small pieces, or copies over the host, are slow.",
)
def efa_rdma(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        wanted = {**RDMA, "VLLM_KV_CACHE_LAYOUT": "HND"}
        off = {name: value for name, value in wanted.items() if engine.env.get(name) != value}
        for name, value in off.items():
            yield Hit(engine.subject, f"{name} is {engine.env.get(name) or 'not set'}", f"set {name}={value}")
        if engine.flags.count("block-size", LEAST_BLOCK) < LEAST_BLOCK:
            what = f"--block-size is {engine.flags.get('block-size')}"
            yield Hit(engine.subject, what, "use --block-size 128 on prefill and decode")


@rule(
    "nccl-interface-set",
    Severity.ERROR,
    "NCCL_SOCKET_IFNAME leaves interfaces out instead of naming one",
    "A named interface hides EFA from NCCL and libfabric.",
    thing="NCCL_SOCKET_IFNAME",
)
def nccl_interface(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        interface = engine.env.get("NCCL_SOCKET_IFNAME", "")
        if hides_efa(interface):
            what = f"NCCL_SOCKET_IFNAME is {interface}"
            yield Hit(engine.subject, what, "it hides EFA: set ^lo,docker,veth, or leave it out")


@rule(
    "container-efa",
    Severity.ERROR,
    "containers on EFA are granted its devices",
    "The container sees no EFA interface, so LIBFABRIC finds no provider and the engine does not start.",
)
def efa_devices(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        if engine.box.container and not engine.box.efa:
            remedy = "map every /dev/infiniband/uverbs*"
            if engine.box.manager == "kubernetes":
                remedy = "request vpc.amazonaws.com/efa, as many as the instance has"
            yield Hit(engine.subject, "no EFA device is granted to the container", remedy)


@rule(
    "container-rights",
    Severity.ERROR,
    "containers on EFA may pin memory",
    "EFA registers the KV cache with the interface, which pins it; without the right registration fails.",
)
def efa_rights(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        if not engine.box.container or engine.box.privileged:
            continue
        lock = "IPC_LOCK" in engine.box.capabilities
        what = "only IPC_LOCK, not privileged" if lock else "neither privileged nor with IPC_LOCK"
        yield Hit(engine.subject, what, "run it privileged", Severity.WARNING if lock else None)


@rule(
    "memlock-granted",
    Severity.ERROR,
    "locked memory is unlimited for engines on EFA",
    "Registering the KV cache fails with ENOMEM at the usual limit of 8 MiB or less.",
)
def memlock(fleet: Declared) -> Iterator[Hit]:
    remedies = {"compose": "set ulimits: {memlock: -1}", "systemd": "set LimitMEMLOCK=infinity"}
    for engine in _fabric(fleet):
        # Kubernetes has no field for it: nodes give it. A shell has the limit of who runs it.
        if engine.box.manager in remedies and engine.box.memlock != UNLIMITED:
            limit = engine.box.memlock
            what = f"the limit of locked memory is {'not set' if limit is None else f'{limit} bytes'}"
            yield Hit(engine.subject, what, remedies[engine.box.manager])


@rule(
    "container-shm",
    Severity.WARNING,
    "containers of engines have 1 GiB of /dev/shm or more",
    "Worker processes pass tensors over /dev/shm; the container engine's 64 MiB end in a bus error.",
)
def shared_memory(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        shm = engine.box.shm
        if engine.box.container and (shm is None or shm < LEAST_SHM):
            remedy = (
                "set shm_size: 4g"
                if engine.box.manager == "compose"
                else "mount an emptyDir of medium Memory"
            )
            what = f"/dev/shm has {'64 MiB, as nothing is said' if shm is None else f'{shm >> 20} MiB'}"
            yield Hit(engine.subject, what, f"{remedy}, more with tensor parallelism")


@rule(
    "container-network",
    Severity.WARNING,
    "containers on EFA use the host's network (compose)",
    "A bridged container announces an address that other hosts do not reach.",
)
def host_network(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        if engine.box.manager == "compose" and not engine.box.host_network:
            yield Hit(engine.subject, "the container has a network of its own", "set network_mode: host")


@rule(
    "container-huge-pages",
    Severity.WARNING,
    "huge pages are used only where they are reserved",
    "With FI_EFA_USE_HUGE_PAGE=1 and none reserved, libfabric fails to start or falls back.",
    thing="FI_EFA_USE_HUGE_PAGE",
)
def huge_pages(fleet: Declared) -> Iterator[Hit]:
    for engine in _fabric(fleet):
        if (
            engine.env.get("FI_EFA_USE_HUGE_PAGE") == "1"
            and engine.box.container
            and not engine.box.huge_pages
        ):
            what = "FI_EFA_USE_HUGE_PAGE is 1, no huge pages are granted"
            yield Hit(engine.subject, what, "reserve and request hugepages-2Mi, or set it to 0")


@rule(
    "security-group",
    Severity.NOTE,
    "reminds of what no manifest shows: the security group of EFA instances",
    "EFA traffic is dropped silently unless the group allows all traffic from itself, inbound and outbound.",
)
def security_group(fleet: Declared) -> Iterator[Hit]:
    if engines := list(_fabric(fleet)):
        what = "EFA is used; its security group, placement and zone cannot be seen from here"
        remedy = "allow all traffic from the group to itself both ways, one zone, one placement group"
        yield Hit(", ".join(engine.subject for engine in engines), what, remedy)


RULES = (
    transfer_backend,
    fi_provider,
    efa_rdma,
    nccl_interface,
    efa_devices,
    efa_rights,
    memlock,
    shared_memory,
    host_network,
    huge_pages,
    security_group,
)
