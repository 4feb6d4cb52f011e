"""Rate models that come with the product: fitted to published figures by :mod:`.fit_published`."""

from __future__ import annotations

from antiphon_server.advise.models import MODELS
from antiphon_server.bench.simulate.announcement import PUBLISHED, Published
from antiphon_server.bench.simulate.rates import RateModel

TOKENIZE = 1.3e-6
"""Seconds a token, measured."""
_FITTED: dict[str, dict[str, float]] = {
    "qwen3-32b-p5en": {
        "prefill": 0.0356,
        "token": 1.675e-05,
        "transfer": 0.0082,
        "transfer_token": 4.81e-06,
        "pull": 0.0,
        "pull_token": 5.32e-06,
    },
    "glm-5-fp8-p5en": {
        "prefill": 0.0323,
        "token": 9.56e-05,
        "transfer": 0.0098,
        "transfer_token": 4.51e-06,
        "pull": 0.217,
        "pull_token": 2.7e-07,
    },
}
"""Seconds; rounded. ``antiphon bench simulate --fit announcement`` fits them again."""


def base(name: str, published: Published, **fitted: float) -> RateModel:
    """What is known without a fit, and what one has found. What attention costs follows from the model's
    configuration: two lengths cannot tell it from what each token costs."""
    token = fitted.pop("token", 0.0)
    return RateModel(
        name,
        fitted.pop("prefill", 0.0),
        token,
        attention=token * MODELS[published.model].attention_share * 1000,
        step=published.step,
        stream=published.step / 100,
        tokenize=TOKENIZE,
        bytes_per_token=published.bytes_per_token,
        assumed=(
            "attention takes as long for each operation as all else of a token",
            f"a decode step takes {published.step * 1e3:g} ms, and a hundredth more with each stream",
            "appended prompts are computed on decode as fast as on prefill",
            "KV moves from prefill to decode as fast as back, and any number of transfers at once",
        ),
        **fitted,  # type: ignore[arg-type]
    )


def preset(name: str) -> RateModel:
    """A model by its name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in _FITTED:
        raise ValueError(f"--model {name!r} has no rates: choose from {', '.join(_FITTED)}, or --fit a sweep")
    return base(name, PUBLISHED[name], **_FITTED[name])


PRESETS = tuple(_FITTED)
