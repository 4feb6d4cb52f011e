"""What is checked of this machine; :mod:`~antiphon_server.doctor.machine.rules` judges."""

from __future__ import annotations

from antiphon_server.doctor.finding import Check, Severity

PYTHON = Check(
    "python",
    Severity.ERROR,
    "Python is one that Antiphon and vLLM run on",
    "nothing can be installed",
)
VLLM = Check(
    "vllm-installed",
    Severity.ERROR,
    "vLLM is installed, and not older than exact reuse needs",
    "before 0.31 leases are not reaped and failed receives are lost",
)
NIXL = Check(
    "nixl-installed",
    Severity.ERROR,
    "NIXL is installed, and not older than EFA needs",
    "without it no KV moves between engines",
)
GPUS = Check("gpus", Severity.ERROR, "there are GPUs, where the preset wants them", "no engine starts")
EFA_DEVICES = Check(
    "efa-devices",
    Severity.ERROR,
    "EFA interfaces are there",
    "KV would go over TCP, far slower, and nothing says so",
)
EFA_NODES = Check(
    "efa-device-files",
    Severity.ERROR,
    "each EFA interface has its device file in /dev/infiniband",
    "a process, or a container, can only use interfaces whose device files it has",
)
LIBFABRIC = Check(
    "libfabric",
    Severity.ERROR,
    "libfabric is installed, 1.21 or later",
    "NIXL's LIBFABRIC backend loads it; its own package does not carry it",
)
PROVIDER = Check(
    "efa-provider",
    Severity.ERROR,
    "libfabric finds the EFA provider with reliable datagrams (fi_info)",
    "NIXL cannot open EFA, whatever devices there are",
)
MEMLOCK = Check(
    "memlock",
    Severity.ERROR,
    "the limit of locked memory is off where EFA is used",
    "registering KV for RDMA locks all of it; beyond the limit the engine ends",
)
SHM = Check(
    "shared-memory",
    Severity.WARNING,
    "/dev/shm is large enough",
    "engines' processes and NIXL share memory there; a container's default of 64 MB ends them",
)
HUGE_PAGES = Check(
    "huge-pages",
    Severity.ERROR,
    "huge pages are reserved where FI_EFA_USE_HUGE_PAGE=1 asks for them",
    "EFA cannot allocate its buffers",
)
INTERFACES = Check(
    "nccl-interface",
    Severity.WARNING,
    "NCCL_SOCKET_IFNAME names what is left out, not one interface",
    "naming one hides EFA",
)
OPEN_FILES = Check(
    "open-files",
    Severity.WARNING,
    "the limit of open files leaves room for connections",
    "a turn needs a connection to its client and one to an engine; at the limit turns fail",
)
PORTS = Check(
    "ports",
    Severity.WARNING,
    "the ports to be used are free",
    "a process that finds its port taken ends",
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
