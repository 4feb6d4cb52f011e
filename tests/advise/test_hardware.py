"""What computing and moving cost, against the announcement's figures and the models' own configurations."""

from __future__ import annotations

import pytest

from antiphon_server.advise.hardware import Given, Hardware, UnknownHardwareError, hardware
from antiphon_server.advise.models import MODELS, find


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("tiny", 4 * 2 * 2 * 64 * 4),  # float32
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),
        ("llama-3.1-70b", 80 * 2 * 8 * 128 * 2),
        ("qwen3-32b", 64 * 2 * 8 * 128 * 2),
        ("gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("glm-5", 78 * ((512 + 64) * 2 + 132)),
    ],
)
def test_kv_of_a_token(name: str, size: int) -> None:
    assert MODELS[name].kv_bytes == size


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("QWEN3-30B-A3B", "qwen3-30b-a3b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("tiny", "tiny"),
        ("my-tiny-model", None),
    ],
)
def test_models_are_found_by_the_names_that_hubs_have(asked: str, found: str | None) -> None:
    model = find(asked)
    assert (model.name if model is not None else None) == found


def test_attention_costs_as_much_as_all_else_at_the_length_that_the_configuration_says() -> None:
    # 4 x 64 layers x 64 heads x 128 = 2.097 MFLOP for each token before; 2 x 32.8 GFLOP for the parameters.
    found = hardware(Given("qwen3-32b", "p5en"))
    length = 2 * 32.8e9 / (4 * 64 * 64 * 128)
    assert found.attention * length == pytest.approx(found.token)


def test_break_even_is_the_first_length_that_is_fetched_as_fast() -> None:
    found = hardware(Given("qwen3-32b", "p5en"))
    length = found.break_even()
    assert length is not None
    assert found.pulling(length) <= found.computing(length, length)
    assert found.pulling(length - 1) > found.computing(length - 1, length - 1)


def test_break_even_without_attention_by_hand() -> None:
    # 1 ms a token against 10 ms and 0.5 ms a token: equal at 20 tokens.
    made = Hardware("x", 1000, 0.1, 1e-3, 0.0, 0.01, 0.5e-3)
    assert made.break_even() == 20


def test_nothing_is_worth_fetching_where_moving_is_slower() -> None:
    assert Hardware("x", 1000, 0.1, 1e-3, 0.0, 0.01, 1e-3).break_even() is None


def test_kv_is_handed_over_as_fast_as_it_is_fetched_unless_that_was_measured() -> None:
    made = Hardware("x", 1000, 0.1, 1e-3, 0.0, 0.01, 0.5e-3)
    assert [made.handing_over(n) for n in (0, 100)] == pytest.approx([0.0, 0.06])
    announced = hardware(Given("qwen3-32b", "p5en"))
    assert announced.handing_over(1000) == pytest.approx(4.81e-3)  # without what prefill does to fetch
    assert hardware(Given("qwen3-32b", "p5en", bandwidth=10.0)).handing_over(1000) == pytest.approx(
        0.008 + 1000 * 262_144 / 10e9
    )


def test_what_is_given_wins() -> None:
    found = hardware(Given("qwen3-32b", "p5en", None, 10.0, 1000.0, 5000))
    assert (found.token, found.capacity) == (1e-3, 5000)
    assert found.gigabytes == pytest.approx(10.0)


def test_a_model_that_is_not_known_needs_its_bytes_and_its_rate() -> None:
    with pytest.raises(UnknownHardwareError, match=r"--model 'mine' is not known: take one of tiny"):
        hardware(Given("mine"))
    with pytest.raises(UnknownHardwareError, match=r"give --prefill-rate"):
        hardware(Given(kv_bytes=1000))
    found = hardware(Given(kv_bytes=1000, prefill_rate=500.0))
    assert (found.kv_bytes, found.token, found.attention) == (1000, 1 / 500, 0.0)


def test_an_instance_that_is_not_known_is_named() -> None:
    with pytest.raises(UnknownHardwareError, match=r"--instance 'p9' is not known: take one of cpu, p4d"):
        hardware(Given(instance="p9"))


def test_what_was_assumed_is_said() -> None:
    assert hardware(Given()).sources[0] == (
        "assumed",
        "qwen3-32b on p5en, as --model and --instance did not say; pass them",
    )
    assert "assumed" not in dict(hardware(Given("qwen3-32b", "p5en")).sources)


def test_every_gpu_pulls_its_own_copy_of_latent_kv() -> None:
    found = hardware(Given("deepseek-v3", "p5en"))
    line = 3200 / 8 * 0.065  # usable GB/s
    assert found.gigabytes == pytest.approx(line / 8)


def test_capacity_is_what_weights_leave_of_memory() -> None:
    # 8 x 141 GB, nine tenths of it, less two bytes for each of 32.8 billion parameters.
    assert hardware(Given("qwen3-32b", "p5en")).capacity == int((8 * 141e9 * 0.9 - 65.6e9) / 262_144)
    # Each of the eight GPUs keeps all of a token's latent KV.
    assert hardware(Given("deepseek-v3", "p5en")).capacity == int((8 * 141e9 * 0.9 - 685e9) / 70_272 / 8)
    assert hardware(Given("tiny", "cpu")).capacity is None


def test_an_engine_that_cannot_hold_the_weights_is_refused_unless_its_capacity_is_given() -> None:
    # 8 x 80 GB, nine tenths of it, are 576 GB.
    with pytest.raises(UnknownHardwareError, match=r"--instance p5: the weights of deepseek-v3, 685 GB, do"):
        hardware(Given("deepseek-v3", "p5"))
    assert hardware(Given("deepseek-v3", "p5", capacity=1_000_000)).capacity == 1_000_000


def test_models_with_sliding_windows_are_not_reused() -> None:
    assert not hardware(Given("gpt-oss-120b")).reuses
    assert hardware(Given("glm-5")).reuses
