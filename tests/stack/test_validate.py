from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon_server.stack.settings import Override, Preset, StackSettings
from antiphon_server.stack.validate import (
    Machine,
    ValidationError,
    machine_faults,
    runnable,
    settings_faults,
)

EFA = StackSettings(preset=Preset.EFA, address="10.0.0.7")
FULL = Machine(vllm=True, nixl="1.5.1", gpus=8, efa_devices=4, libfabric=True)


def things(settings: StackSettings, environ: dict[str, str] | None = None) -> list[str]:
    return [fault.thing for fault in settings_faults(settings, environ or {})]


@pytest.mark.parametrize("settings", [StackSettings(), StackSettings(preset=Preset.GPU), EFA])
def test_sound_settings_have_no_fault(settings: StackSettings) -> None:
    assert settings_faults(settings, {}) == []
    assert machine_faults(settings, FULL) == []


@pytest.mark.parametrize(
    "address", [None, "localhost", "127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "169.254.1.1"]
)
def test_efa_needs_an_address_that_other_nodes_reach(address: str | None) -> None:
    assert things(replace(EFA, address=address)) == ["address"]


def test_a_host_name_is_left_to_the_other_nodes() -> None:
    assert things(replace(EFA, address="p5-node-3.internal")) == []


def test_an_interface_name_that_hides_efa_is_a_fault() -> None:
    assert things(EFA, {"NCCL_SOCKET_IFNAME": "eth0"}) == ["NCCL_SOCKET_IFNAME"]
    assert things(EFA, {"NCCL_SOCKET_IFNAME": "^lo,docker,veth"}) == []


@pytest.mark.parametrize("key", ["kv_load_failure_policy", "engine_id"])
def test_what_has_no_place_in_the_extra_config_is_a_fault(key: str) -> None:
    settings = StackSettings(overrides={"decode": Override(kv_extra={key: "x"})})
    (fault,) = settings_faults(settings, {})
    assert key in str(fault)
    assert "remove it" in fault.remedy


def test_efa_without_libfabric_backend_is_a_fault() -> None:
    both = Override(kv_extra={"backends": ["UCX"]})
    assert things(replace(EFA, overrides={"prefill": both, "decode": both})) == ["backends"]


@pytest.mark.parametrize(
    "flags", [("--tensor-parallel-size", "2"), ("--tensor-parallel-size=2",), ("--block-size", "64")]
)
def test_prefill_and_decode_must_agree_on_the_shape_of_kv(flags: tuple[str, ...]) -> None:
    one = Override(flags=flags)
    assert things(StackSettings(overrides={"prefill": one})) == [flags[0].partition("=")[0]]
    assert things(StackSettings(overrides={"prefill": one, "decode": one})) == []


def test_reuse_on_one_side_only_is_a_fault() -> None:
    off = Override(kv_extra={"bidirectional_kv_xfer": False})
    assert things(StackSettings(overrides={"decode": off})) == ["bidirectional_kv_xfer"]


def test_what_the_doctor_calls_an_error_is_a_fault() -> None:
    hashed = Override(flags=("--prefix-caching-hash-algo", "xxhash"))
    settings = StackSettings(overrides={"prefill": hashed, "decode": hashed})
    assert things(settings) == ["PYTHONHASHSEED"]
    assert things(settings, {"PYTHONHASHSEED": "0"}) == []


def test_stock_engines_are_not_taken_for_ones_that_reuse() -> None:
    assert things(StackSettings(stock=True)) == []
    (fault,) = settings_faults(
        StackSettings(stock=True, overrides={"decode": Override(kv_extra={"bidirectional_kv_xfer": True})}),
        {},
    )[:1]
    assert (fault.thing, fault.value) == (
        "bidirectional_kv_xfer",
        "on with kv_connector 'NixlConnector' (decode-0)",
    )


def test_a_whole_transfer_config_in_the_flags_is_a_fault() -> None:
    settings = StackSettings(overrides={"decode": Override(flags=("--kv-transfer-config={}",))})
    assert things(settings) == ["overrides[decode].flags"]


def test_an_override_of_an_engine_that_is_not_there_is_a_fault() -> None:
    (fault,) = settings_faults(StackSettings(overrides={"decode-1": Override()}), {})
    assert fault.value == "decode-1"
    assert "decode-0" in fault.remedy


@pytest.mark.parametrize(
    ("settings", "thing"),
    [
        (StackSettings(prefill=0), "prefill"),
        (StackSettings(decode=-1), "decode"),
        (StackSettings(tensor_parallel=0), "tensor_parallel"),
        (StackSettings(data_parallel=0), "data_parallel"),
        (StackSettings(kv_space=0), "kv_space"),
        (StackSettings(port=0), "port"),
        (StackSettings(data_parallel=2), "data_parallel"),
    ],
)
def test_counts_that_cannot_be_are_faults(settings: StackSettings, thing: str) -> None:
    assert things(settings) == [thing]


def test_gpus_are_counted() -> None:
    settings = StackSettings(preset=Preset.GPU, prefill=2, decode=2, tensor_parallel=2)
    assert machine_faults(settings, FULL) == []
    (fault,) = machine_faults(settings, replace(FULL, gpus=7))
    assert (fault.thing, fault.value) == ("GPUs", "7 of the 8 needed")


@pytest.mark.parametrize(
    ("machine", "thing"),
    [
        (replace(FULL, efa_devices=0), "EFA devices"),
        (replace(FULL, libfabric=False), "libfabric.so.1"),
        (replace(FULL, nixl="1.3.1"), "nixl"),
        (replace(FULL, nixl=None), "nixl"),
        (replace(FULL, vllm=False), "vllm"),
    ],
)
def test_what_efa_needs_of_the_machine_is_named(machine: Machine, thing: str) -> None:
    assert [fault.thing for fault in machine_faults(EFA, machine)] == [thing]


def test_cpu_asks_for_no_accelerator() -> None:
    bare = Machine(vllm=True, nixl="1.3.0", gpus=0, efa_devices=0, libfabric=False)
    assert machine_faults(StackSettings(), bare) == []


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        runnable(replace(EFA, address=None, prefill=0), {"NCCL_SOCKET_IFNAME": "eth0"})
    assert {"address", "prefill", "NCCL_SOCKET_IFNAME"} <= {fault.thing for fault in caught.value.faults}
