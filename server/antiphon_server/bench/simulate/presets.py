"""Rate models that come with the product: fitted to published figures by :mod:`.fit_published`."""

from __future__ import annotations

from antiphon_server.bench.simulate.fit_published import base
from antiphon_server.bench.simulate.published import PUBLISHED
from antiphon_server.bench.simulate.rates import RateModel

_FITTED: dict[str, dict[str, float]] = {
    "qwen3-32b-p5en": {
        "prefill": 0.0229,
        "token": 2.24e-05,
        "attention": 1.03e-07,
        "transfer": 0.0116,
        "transfer_token": 4.44e-06,
        "pull": 0.0,
        "pull_token": 6.56e-06,
    },
    "glm-5-fp8-p5en": {
        "prefill": 0.0323,
        "token": 9.56e-05,
        "attention": 0.0,
        "transfer": 0.0098,
        "transfer_token": 4.51e-06,
        "pull": 0.217,
        "pull_token": 2.7e-07,
    },
}
"""Seconds; rounded. ``antiphon bench simulate --fit announcement`` fits them again."""


def preset(name: str) -> RateModel:
    """A model by its name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in _FITTED:
        raise ValueError(f"no rate model {name!r}: choose from {', '.join(_FITTED)}, or --fit a sweep")
    return base(name, PUBLISHED[name], **_FITTED[name])


PRESETS = tuple(_FITTED)
