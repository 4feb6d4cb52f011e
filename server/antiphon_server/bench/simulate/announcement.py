"""The announcement's figures: 1 prefill and 1 decode engine on two p5en.48xlarge, vLLM 0.29, NIXL 1.4.1 over
EFA, prefill without a prefix cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class End:
    """Figures at one length of the prompt's beginning, in seconds: means over all turns."""

    prefix: int
    ttft_off: float
    ttft_on: float
    prefill_off: float
    prefill_on: float
    transfer: float


@dataclass(frozen=True, slots=True)
class Published:
    """``lengths``: of the prompt's beginning that were measured; figures are published of the ``ends``.
    Tokens and bytes. ``model``, ``instance``: as the adviser calls them. ``step``: seconds of a decode step,
    which is not published: assumed."""

    title: str
    model: str
    instance: str
    lengths: tuple[int, ...]
    ends: tuple[End, End]
    bytes_per_token: int
    step: float


PUBLISHED = {
    "qwen3-32b-p5en": Published(
        "Qwen3-32B",
        "qwen3-32b",
        "p5en",
        (2000, 4000, 8000, 12000, 16000, 20000, 24000),
        (End(2000, 0.158, 0.122, 0.153, 0.128, 0.030), End(24000, 0.778, 0.460, 0.744, 0.414, 0.130)),
        # 64 layers, 8 KV heads of 128, keys and values, two bytes each
        64 * 8 * 128 * 2 * 2,
        0.010,
    ),
    "glm-5-fp8-p5en": Published(
        "GLM-5-FP8",
        "glm-5",
        "p5en",
        (2000, 4000, 8000, 12000, 16000, 20000),
        (End(2000, 0.500, 0.358, 0.500, 0.316, 0.029), End(20000, 2.334, 0.702, 2.331, 0.541, 0.110)),
        # 78 layers, a latent of 512 and 64 rotary numbers, two bytes each
        78 * (512 + 64) * 2,
        0.015,
    ),
}
