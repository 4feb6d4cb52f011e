"""What computing and moving KV costs on a user's engines. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from antiphon_server.advise.fitted import Fitted
from antiphon_server.advise.instances import (
    DENSE_SHARE,
    FIXED_S,
    INSTANCES,
    LINE_SHARE,
    MEMORY_SHARE,
    MIXTURE_SHARE,
    PULL_S,
    Instance,
)
from antiphon_server.advise.models import MODELS, Model, find
from antiphon_server.bench.simulate.announcement import PUBLISHED
from antiphon_server.bench.simulate.presets import preset
from antiphon_server.bench.simulate.rates import RateModel

LONGEST = 2_000_000
"""Tokens: no prompt is longer."""
_FITTED = "fitted to the announcement's figures"


class UnknownHardwareError(ValueError):
    """A model or instance that is not known, or too little said of it."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Seconds. ``fixed``: a prefill leg beyond its tokens; ``token``: each token computed; ``attention``:
    each of them for each token before it. ``pull_fixed``, ``pull_token``: KV that prefill fetches from
    decode; ``hand_fixed``, ``hand_token``: that decode fetches from prefill, None: as fast. ``kv_bytes``: of
    one token. ``capacity``: tokens of KV of a decode engine, None if unknown. ``longest``: tokens of the
    longest prompt that computing was measured with, None if it was not measured. ``reuses``: engines can
    reuse this model's KV. ``sources``: where each figure is from, for people."""

    name: str
    kv_bytes: int
    fixed: float
    token: float
    attention: float
    pull_fixed: float
    pull_token: float
    capacity: int | None = None
    hand_fixed: float | None = None
    hand_token: float | None = None
    longest: int | None = None
    reuses: bool = True
    sources: tuple[tuple[str, str], ...] = ()

    def computing(self, new: int, context: int) -> float:
        """The last ``new`` tokens of a prompt of ``context``, without what is fixed."""
        return self.token * new + self.attention * new * (context - new / 2)

    def prefill(self, new: int, context: int) -> float:
        """A whole leg."""
        return self.fixed + self.computing(new, context)

    def pulling(self, tokens: int) -> float:
        """KV of so many tokens; nothing costs nothing."""
        return self.pull_fixed + self.pull_token * tokens if tokens > 0 else 0.0

    def handing_over(self, tokens: int) -> float:
        """KV of so many tokens to decode."""
        fixed = self.pull_fixed if self.hand_fixed is None else self.hand_fixed
        token = self.pull_token if self.hand_token is None else self.hand_token
        return fixed + token * tokens if tokens > 0 else 0.0

    @property
    def gigabytes(self) -> float:
        """GB/s at which KV moves."""
        return self.kv_bytes / self.pull_token / 1e9 if self.pull_token else float("inf")

    def break_even(self) -> int | None:
        """Shortest prefix, in tokens, that is fetched no later than it would be computed; None: none is."""
        if self.computing(LONGEST, LONGEST) < self.pulling(LONGEST):
            return None
        short, long = 0, LONGEST
        while long - short > 1:
            middle = (short + long) // 2
            if self.computing(middle, middle) >= self.pulling(middle):
                long = middle
            else:
                short = middle
        return long


@dataclass(frozen=True, slots=True)
class Given:
    """What a user said of the engines; None: nothing. ``bandwidth``: usable GB/s from decode to prefill.
    ``prefill_rate``: tokens/s of short prompts."""

    model: str | None = None
    instance: str | None = None
    kv_bytes: int | None = None
    bandwidth: float | None = None
    prefill_rate: float | None = None
    capacity: int | None = None


DEFAULT_MODEL, DEFAULT_INSTANCE = "qwen3-32b", "p5en"


def hardware(given: Given, fitted: Fitted | None = None) -> Hardware:
    """Put together what was said, what was measured, and what is known.

    Raises:
        UnknownHardwareError: a name is not known, and the figures that would do instead were not given.
    """
    unnamed = given.model is None and given.kv_bytes is not None
    model = None if unnamed else _model(given)
    name = (given.instance or DEFAULT_INSTANCE).lower()
    instance = INSTANCES.get(name)
    if instance is None:
        raise UnknownHardwareError(
            f"--instance {given.instance!r} is not known: take one of {', '.join(INSTANCES)}, or leave it "
            "out and give --bandwidth and --prefill-rate"
        )
    if model is None and given.prefill_rate is None and fitted is None:
        raise UnknownHardwareError(
            "--kv-bytes-per-token without --model: give --prefill-rate as well, the tokens/s that one "
            "prefill engine computes"
        )
    found = _assembled(given, model, instance, fitted)
    return found if fitted is None else _measured(found, given, fitted)


def _measured(found: Hardware, given: Given, fitted: Fitted) -> Hardware:
    """What was measured, where nothing was given. A pull that costs nothing was not seen."""
    sources = dict(found.sources)
    said = f"{fitted.source}, {fitted.legs} legs, median error {fitted.error:.0%}"
    if given.prefill_rate is None:
        found = replace(
            found,
            fixed=fitted.fixed,
            token=fitted.token,
            attention=fitted.attention,
            longest=fitted.longest,
        )
        rate = f"{1 / fitted.token:,.0f} tokens/s" if fitted.token else "attention"
        sources["computing"] = f"{rate} and {fitted.fixed * 1e3:.0f} ms a leg: {said}"
    if given.kv_bytes is None and fitted.kv_bytes:
        found = replace(found, kv_bytes=fitted.kv_bytes)
        sources["KV of a token"] = f"{fitted.kv_bytes:,} bytes, {fitted.source}"
    if given.bandwidth is None and fitted.pull_token:
        found = replace(
            found,
            pull_fixed=fitted.pull_fixed or 0.0,
            pull_token=fitted.pull_token,
            hand_fixed=None,
            hand_token=None,
        )
        sources["moving"] = f"{found.gigabytes:.2f} GB/s and {found.pull_fixed * 1e3:.0f} ms a pull: {said}"
    return replace(found, sources=tuple(sources.items()))


def _model(given: Given) -> Model:
    asked = given.model or DEFAULT_MODEL
    model = find(asked)
    if model is None:
        raise UnknownHardwareError(
            f"--model {asked!r} is not known: take one of {', '.join(MODELS)}, or give --kv-bytes-per-token "
            "(layers x 2 x KV heads x head dimension x bytes a number) and --prefill-rate"
        )
    return model


def _assembled(given: Given, model: Model | None, instance: Instance, fitted: Fitted | None) -> Hardware:
    sources: list[tuple[str, str]] = []
    assumed = given.model is None and model is not None
    known = _announced(model, instance) if model is not None else None

    kv_bytes = given.kv_bytes or (model.kv_bytes if model is not None else 0)
    sources.append(
        ("KV of a token", f"{kv_bytes:,} bytes, {'as given' if given.kv_bytes else 'from the model'}")
    )
    ratio = model.attention_share if model is not None else 0.0
    if model is None and given.prefill_rate is None and fitted is not None:
        fixed, token, said = fitted.fixed, fitted.token, ""
    else:
        fixed, token, said = _prefill(given, model, instance, known)
    sources.append(("computing", said))
    pull_fixed, pull_token, said = _pull(given, model, instance, known, kv_bytes)
    sources.append(("moving", said))
    capacity = given.capacity
    if capacity is None and model is not None and instance.memory is not None:
        room = instance.memory * MEMORY_SHARE - model.weights
        copies = instance.gpus if model.replicated else 1
        capacity = int(room / (kv_bytes * copies))
        if capacity <= 0:
            raise UnknownHardwareError(
                f"--instance {instance.name}: the weights of {model.name}, {model.weights / 1e9:,.0f} GB, do "
                f"not fit into {MEMORY_SHARE:.0%} of its {instance.memory / 1e9:,.0f} GB: take a larger one, "
                "or give --decode-kv-tokens of an engine that spans several"
            )
        sources.append(
            ("KV of a decode engine", f"{capacity:,} tokens: {MEMORY_SHARE:.0%} of memory less weights")
        )
    elif capacity:
        sources.append(("KV of a decode engine", f"{capacity:,} tokens, as given"))
    name = f"{model.name if model is not None else 'your model'} on {instance.name}"
    if assumed or given.instance is None:
        sources.insert(0, ("assumed", f"{name}, as --model and --instance did not say; pass them"))
    return Hardware(
        name,
        kv_bytes,
        fixed,
        token,
        token * ratio,
        pull_fixed,
        pull_token,
        capacity,
        hand_fixed=known[0].hand_over if known is not None and not given.bandwidth else None,
        hand_token=known[0].transfer_token if known is not None and not given.bandwidth else None,
        longest=known[1] if known is not None and not given.prefill_rate else None,
        reuses=not (model is not None and model.window),
        sources=tuple(sources),
    )


def _announced(model: Model, instance: Instance) -> tuple[RateModel, int] | None:
    """Rates fitted to the announcement's figures, and the longest prompt that it measured."""
    for name, published in PUBLISHED.items():
        if (published.model, published.instance) == (model.name, instance.name):
            return preset(name), max(published.lengths)
    return None


def _prefill(
    given: Given, model: Model | None, instance: Instance, known: tuple[RateModel, int] | None
) -> tuple[float, float, str]:
    if given.prefill_rate:
        return FIXED_S, 1 / given.prefill_rate, f"{given.prefill_rate:,.0f} tokens/s, as given"
    assert model is not None
    if known is not None:
        rates, longest = known
        fixed = rates.prefill + rates.step
        said = f"{1 / rates.token:,.0f} tokens/s and {fixed * 1e3:.0f} ms a leg"
        return fixed, rates.token, f"{said}: {_FITTED}, prompts of up to {longest:,} tokens"
    share = MIXTURE_SHARE if model.mixture else DENSE_SHARE
    rate = instance.teraflops * 1e12 * share / (2 * model.active)
    return FIXED_S, 1 / rate, f"{rate:,.0f} tokens/s: estimated, {share:.0%} of peak compute"


def _pull(
    given: Given,
    model: Model | None,
    instance: Instance,
    known: tuple[RateModel, int] | None,
    kv_bytes: int,
) -> tuple[float, float, str]:
    if given.bandwidth:
        return PULL_S, kv_bytes / (given.bandwidth * 1e9), f"{given.bandwidth:g} GB/s, as given"
    if known is not None:
        rates, _ = known
        fixed, token = rates.pulling(0), rates.transfer_token + rates.pull_token
        rate = kv_bytes / token / 1e9
        return fixed, token, f"{rate:.0f} GB/s and {fixed * 1e3:.0f} ms a pull: {_FITTED}"
    copies = instance.gpus if model is not None and model.replicated else 1
    rate = instance.gbits / 8 * LINE_SHARE
    said = f"{rate:.1f} GB/s: estimated, {LINE_SHARE:.1%} of {instance.gbits:,.0f} Gb/s"
    if copies > 1:
        said += f", {copies} copies of each token's KV"
    return PULL_S, kv_bytes * copies / (rate * 1e9), said
