"""Each planted fault, one edit of a fleet without one, is found, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from antiphon_server.doctor.checks import CHECKS, DECLARED
from antiphon_server.doctor.finding import Severity
from deploy.kubernetes.render import OVERLAYS
from doctor import goods
from doctor.goods import Good, looked_at, write

ALL = -1


@dataclass(frozen=True)
class Planted:
    """In ``file`` of the fleet ``good``, ``old`` becomes ``new``: the first time, or everywhere."""

    check: str
    good: str
    file: str
    old: str
    new: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.check}: {self.good}, {self.new.strip() or 'without ' + self.old.strip()}"[:90]


SH, COMPOSE, YAML = "stack.sh", "compose.yaml", "fleet.yaml"
D0, P0 = "d0/engine-decode-0.env", "p0/engine-prefill-0.env"
UNIT, ROUTER_UNIT = "d0/antiphon-engine@.service", "d0/antiphon-router.service"
EXTRA = '"kv_connector_extra_config": {'
POLICY = '"kv_load_failure_policy": "recompute", '
EFA = "vpc.amazonaws.com/efa: '16'"

FAULTS = (
    # --- the KV transfer configuration
    Planted("kv-transfer", "up cpu", SH, "--kv-transfer-config '{", "--kv-transfer-config '{,"),
    Planted("misplaced-setting", "up cpu", SH, EXTRA, EXTRA + POLICY),
    Planted("engine-id", "up cpu", SH, '"kv_role"', '"engine_id": "p0", "kv_role"'),
    Planted("engine-id", "up cpu", SH, EXTRA, EXTRA + '"engine_id": "p0", '),
    Planted("failure-policy", "up cpu", SH, POLICY, ""),
    Planted("failure-policy", "compose", ".env", "FAILURE_POLICY=recompute", "FAILURE_POLICY=fail"),
    Planted("kv-role", "up gpu", SH, "kv_consumer", "kv_producer"),
    Planted("stock-reuse", "up cpu", SH, '"AntiphonConnector"', '"NixlConnector"', ALL),
    Planted("unchecked-reuse", "up cpu", SH, EXTRA, EXTRA + '"antiphon_unsafe_skip_prefix_check": true, '),
    Planted("reuse-flag", "up gpu", SH, '"bidirectional_kv_xfer": true', '"bidirectional_kv_xfer": false'),
    Planted("reuse-flag", "up cpu", SH, '"bidirectional_kv_xfer": true, ', "", ALL),
    Planted("plug-in", "up cpu", SH, "--middleware antiphon_server.engine.middleware.AntiphonMiddleware", ""),
    Planted("plug-in", "up efa", SH, '"kv_connector_module_path": "antiphon_server.engine.connector", ', ""),
    # --- the engine itself
    Planted("command-line", "units", D0, "ANTIPHON_ENGINE_THRESHOLD=64", "ANTIPHON_ENGINE_THRESHOLD=many"),
    Planted(
        "unread-file", "units", UNIT, "EnvironmentFile=-", "EnvironmentFile=/dev/zero\nEnvironmentFile=-"
    ),
    Planted("hash-seed", "up cpu", SH, "--block-size", "--prefix-caching-hash-algo xxhash --block-size", ALL),
    Planted("keep-alive", "up cpu", SH, "KEEP_ALIVE=600", "KEEP_ALIVE=30"),
    Planted("engine-settings", "units", D0, "ANTIPHON_ENGINE_THRESHOLD", "ANTIPHON_ENGINE_TRESHOLD"),
    Planted(
        "engine-settings",
        "compose",
        COMPOSE,
        "ANTIPHON_ENGINE_ADDRESS: auto",
        "ANTIPHON_ENGINE_ADDRESS: auto\n  ANTIPHON_ENGIN_PORT: 1",
    ),
    Planted("context-parallel", "up gpu", SH, "--block-size", "-dcp 2 --block-size"),
    Planted("vllm-version", "compose", ".env", "vllm-openai:v0.32.0", "vllm-openai:v0.30.0"),
    # --- equal on prefill and decode
    Planted("same-model", "up gpu", SH, "--model ", "--model other/model --served-model-name "),
    Planted("same-model", "units", P0, "MODEL=Qwen/Qwen3-32B", "MODEL=Qwen/Qwen3-8B"),
    Planted("same-tensor-parallel", "up gpu", SH, "--block-size", "--tensor-parallel-size 2 --block-size"),
    Planted("same-tensor-parallel", "units", P0, "TENSOR_PARALLEL=8", "TENSOR_PARALLEL=4"),
    Planted("same-block-size", "up gpu", SH, "--block-size 64", "--block-size 128"),
    Planted("same-dtype", "up cpu", SH, "--dtype float32", "--dtype bfloat16"),
    Planted("same-kv-cache-dtype", "up gpu", SH, "--block-size", "--kv-cache-dtype fp8 --block-size"),
    Planted("same-attention-backend", "up gpu", SH, "--block-size", "--attention-backend X --block-size"),
    Planted("same-kv-layout", "up gpu", SH, "VLLM_KV_CACHE_LAYOUT=HND", "VLLM_KV_CACHE_LAYOUT=NHD"),
    Planted("same-hash", "up cpu", SH, "--dtype", "--prefix-caching-hash-algo sha256_cbor --dtype"),
    Planted("same-context", "up cpu", SH, "--max-model-len 8192", "--max-model-len=4096"),
    Planted("same-backends", "up gpu", SH, EXTRA, EXTRA + '"backends": ["UCX", "GDS"], '),
    Planted("same-threshold", "up cpu", SH, '"kv_recompute_threshold": 64', '"kv_recompute_threshold": 256'),
    Planted(
        "same-vllm",
        "compose",
        COMPOSE,
        "  decode-gpu:\n",
        "  decode-gpu:\n    build: {args: {V: 'vllm:0.33.0'}}\n",
    ),
    Planted(
        "same-nixl",
        "compose",
        COMPOSE,
        "  decode-efa:\n",
        "  decode-efa:\n    build: {args: {NIXL_VERSION: 1.4.1}}\n",
    ),
    # --- where engines meet
    Planted("side-channel-host", "up efa", SH, "CHANNEL_HOST=10.0.0.7", "CHANNEL_HOST=localhost"),
    Planted(
        "side-channel-host",
        "compose",
        COMPOSE,
        "ANTIPHON_ENGINE_ADDRESS: auto",
        "ANTIPHON_ENGINE_ADDRESS: 127.0.0.1",
    ),
    Planted("side-channel-host", "units", P0, "ADDRESS=10.0.0.10", "ADDRESS=169.254.0.1"),
    Planted("side-channel-port", "up gpu", SH, "CHANNEL_PORT=5601", "CHANNEL_PORT=5600"),
    Planted(
        "side-channel-port",
        "compose",
        ".env",
        "DECODE_SIDE_CHANNEL_PORT=5620",
        "DECODE_SIDE_CHANNEL_PORT=5600",
    ),
    Planted("both-roles", "engines", SH, "python -m vllm.", "python -m other."),
    Planted("port", "engines", SH, "--port 8200", "--port 5600"),
    Planted("port", "engines", SH, "--port 8200", "--port 8100"),
    # --- EFA
    Planted("transfer-backend", "up efa", SH, '"backends": ["LIBFABRIC"]', '"backends": ["UCX"]', ALL),
    Planted("fi-provider", "up efa", SH, "FI_PROVIDER=efa", "FI_PROVIDER=tcp"),
    Planted("efa-rdma", "up efa", SH, "FI_EFA_USE_DEVICE_RDMA=1", "FI_EFA_USE_DEVICE_RDMA=0"),
    Planted("nccl-interface-set", "up efa", SH, "env ", "env NCCL_SOCKET_IFNAME=ens5 "),
    Planted("container-efa", "compose", COMPOSE, 'devices: ["/dev/infiniband:/dev/infiniband"]', ""),
    Planted("container-efa", "kubernetes efa", YAML, EFA, "nothing: '0'", 2),
    Planted("container-rights", "compose", COMPOSE, "  privileged: true\n", ""),
    Planted("container-rights", "compose", COMPOSE, "  privileged: true\n", "  cap_add: [IPC_LOCK]\n"),
    Planted("memlock-granted", "compose", COMPOSE, "memlock: {soft: -1, hard: -1}", "memlock: 8388608"),
    Planted("memlock-granted", "units", UNIT, "LimitMEMLOCK=infinity", "LimitMEMLOCK=64M"),
    Planted("container-shm", "compose", ".env", "CPU_SHM_SIZE=4g", "CPU_SHM_SIZE=64m"),
    Planted("container-shm", "kubernetes gpu", YAML, "mountPath: /dev/shm", "mountPath: /dev/other", ALL),
    Planted("container-network", "compose", COMPOSE, "  network_mode: host\n  privileged", "  privileged"),
    Planted(
        "container-huge-pages",
        "compose",
        COMPOSE,
        "ANTIPHON_ENGINE_PRESET: efa",
        "ANTIPHON_ENGINE_PRESET: efa\n  FI_EFA_USE_HUGE_PAGE: 1",
    ),
    Planted("security-group", "up efa", SH, "env ", "env "),
    # --- routers
    Planted("router-settings", "compose", ".env", "ANTIPHON_KEEP_SHARE=0.5", "ANTIPHON_KEEP_SHARE=5"),
    Planted("router-settings", "up cpu", SH, "ANTIPHON_SHUTDOWN_GRACE=5", "ANTIPHON_SHUTDOWN_GRACE=soon"),
    Planted("router-port", "up cpu", SH, "--port 8000", "--port 8200"),
    Planted("router-port", "up cpu", SH, "--port 8000", "--port 5600"),
    Planted("router-port", "units", "d0/router.env", "ANTIPHON_PORT=8000", "ANTIPHON_PORT=8200"),
    Planted(
        "router-engines", "up cpu", SH, "--prefill http://127.0.0.1:8100", "--prefill http://127.0.0.1:8109"
    ),
    Planted("router-engines", "units", "d0/router.env", "10.0.0.10:8100", "10.0.0.10:8200"),
    Planted("discovery", "kubernetes cpu", YAML, "component=decode", "component=decoder"),
    Planted("engine-key-equal", "up cpu", SH, 'ANTIPHON_ENGINE_KEY="$ANTIPHON_ENGINE_KEY"', ""),
    Planted(
        "engine-key-equal",
        "compose",
        COMPOSE,
        "  ANTIPHON_ENGINE_KEY: ${ANTIPHON_ENGINE_KEY:-}\n  ANTIPHON_API",
        "  ANTIPHON_API",
    ),
    Planted("lease-budget", "compose", ".env", "DECODE_TTL=60", "DECODE_TTL=5"),
    Planted("lease-budget", "units", D0, "DECODE_TTL=480", "DECODE_TTL=20"),
    Planted(
        "lease-budget",
        "up cpu",
        SH,
        "ANTIPHON_SHUTDOWN_GRACE",
        "ANTIPHON_LEASE_TTL=900 ANTIPHON_SHUTDOWN_GRACE",
    ),
    Planted("pinned-long", "compose", ".env", "DECODE_TTL=60", "DECODE_TTL=3600"),
    Planted(
        "router-keep-alive",
        "up cpu",
        SH,
        "ANTIPHON_SHUTDOWN_GRACE",
        "ANTIPHON_KEEP_ALIVE=900 ANTIPHON_SHUTDOWN_GRACE",
    ),
    Planted("stop-grace", "compose", ".env", "ROUTER_STOP_GRACE=45s", "ROUTER_STOP_GRACE=20s"),
    Planted(
        "stop-grace",
        "kubernetes cpu",
        YAML,
        "terminationGracePeriodSeconds: 630",
        "terminationGracePeriodSeconds: 605",  # of which the pause before SIGTERM takes 10
    ),
    Planted("stop-grace", "units", ROUTER_UNIT, "TimeoutStopSec=90", "TimeoutStopSec=15"),
    Planted(
        "shared-store",
        "kubernetes cpu",
        YAML,
        "ANTIPHON_STORE: redis://antiphon-redis:6379/0",
        "ANTIPHON_STORE: memory",
    ),
    Planted("shared-store", "compose", COMPOSE, "  router:\n", "  router:\n    deploy: {replicas: 3}\n"),
    # --- who reaches what
    Planted("engine-exposed", "compose", ".env", "ANTIPHON_ENGINE_KEY=k-e-y", "ANTIPHON_ENGINE_KEY="),
    Planted("router-exposed", "compose", ".env", "ROUTER_BIND=127.0.0.1", "ROUTER_BIND=0.0.0.0"),
    Planted("plain-secret", "compose", COMPOSE, "${ANTIPHON_ADMIN_KEY:-}", "hunter2hunter2"),
    Planted(
        "plain-secret",
        "kubernetes cpu",
        YAML,
        "apiVersion",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {key: hunter2}\n---\napiVersion",
    ),
    Planted(
        "redis-password",
        "compose",
        ".env",
        "ANTIPHON_STORE=memory",
        "ANTIPHON_STORE=rediss://cache.example:6379",
    ),
    Planted(
        "redis-tls",
        "compose",
        ".env",
        "ANTIPHON_STORE=memory",
        "ANTIPHON_STORE=redis://:${P}@cache.example:6379",
    ),
    Planted("pinned-image", "compose", ".env", "antiphon/router:0.1.0", "antiphon/router:latest"),
    Planted("pinned-image", "kubernetes gpu", YAML, "antiphon/engine-gpu:0.1.0", "antiphon/engine-gpu", ALL),
)


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Good]:
    """Every fleet, by name."""
    folder = tmp_path_factory.mktemp("kubectl")
    found = [*map(goods.up, goods.UP), goods.compose(), goods.units()]
    found += [goods.engines()]
    found += [goods.overlay(name, folder) for name in OVERLAYS]
    return {one.name: one for one in found}


NAMES = [
    *(f"up {preset}" for preset in goods.UP),
    "compose",
    "engines",
    "units",
    *(f"kubernetes {name}" for name in OVERLAYS),
]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_what_we_ship(good: dict[str, Good], name: str, tmp_path: Path) -> None:
    seen = looked_at(write(good[name].files, tmp_path))
    assert [finding for finding in seen.findings if finding.severity is not Severity.NOTE] == []
    assert len(seen.checked) > 40


def test_of_a_larger_site_only_its_redis_is_to_be_seen_to(tmp_path: Path) -> None:
    seen = looked_at(write(goods.units("site-fleet.yaml").files, tmp_path))
    found = {finding.check for finding in seen.findings if finding.severity is not Severity.NOTE}
    assert found == {"redis-password"}  # its address alone is in the site, as it should be
    # 'antiphon hosts' refuses a store's password in the site itself.
    said = {one.remedy for one in seen.findings if one.check == "redis-password"}
    assert ["into /etc/antiphon/secrets.env on the router's host" in one for one in said] == [True]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_found_and_nothing_else(
    good: dict[str, Good], fault: Planted, tmp_path: Path
) -> None:
    files = dict(good[fault.good].files)
    assert fault.old in files[fault.file]
    files[fault.file] = files[fault.file].replace(fault.old, fault.new, fault.times)
    seen = looked_at(write(files, tmp_path))
    check = CHECKS[fault.check]
    found = {finding.check for finding in seen.findings if finding.severity is not Severity.NOTE}
    notes = {finding.check for finding in seen.findings if finding.severity is Severity.NOTE}
    assert found == (set() if check.severity is Severity.NOTE else {fault.check})
    assert fault.check in found | notes


def test_every_check_of_manifests_is_planted() -> None:
    assert {fault.check for fault in FAULTS} == {check.word for check in DECLARED}
    assert len({check.word for check in DECLARED}) > 20
