"""How fast modelled engines are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateModel:
    """Seconds, and seconds a token. All are of one engine; those of prefill also hold for a prompt's new part
    on decode.

    ``prefill``: before a prompt is computed, beside other work; ``token``: each computed token;
    ``attention``: each computed token for each thousand tokens before it. ``step``: a step beside that;
    ``stream``: each sequence that gets a token in it; ``chunk``: prompt tokens of a step at most.

    ``transfer``, ``transfer_token``: moving KV from decode to prefill; ``pull``, ``pull_token``: what prefill
    needs for that beside the transfer. ``hand_over``: before KV is moved from prefill to decode, each token
    in ``transfer_token`` again. ``links``: transfers that an engine makes at once, later ones wait; 0: any
    number. ``tokenize``: on whichever engine gets text.

    ``bytes_per_token``: of KV. ``assumed``: what no figure told. ``errors``: what it was fitted to, (figure,
    seconds, seconds by the model).
    """

    name: str
    prefill: float
    token: float
    attention: float = 0.0
    step: float = 0.0
    stream: float = 0.0
    chunk: int = 8192
    transfer: float = 0.0
    transfer_token: float = 0.0
    pull: float = 0.0
    pull_token: float = 0.0
    hand_over: float = 0.0
    links: int = 0
    tokenize: float = 0.0
    bytes_per_token: int = 0
    assumed: tuple[str, ...] = ()
    errors: tuple[tuple[str, float, float], ...] = ()

    def compute(self, new: int, before: int) -> float:
        """Seconds to compute ``new`` tokens that follow ``before`` others, once it is their turn."""
        return new * (self.token + self.attention * (before + new / 2) / 1000)

    def pulling(self, tokens: int) -> float:
        """Seconds until prefill has the KV of so many tokens from decode."""
        return self.transfer + self.pull + tokens * (self.transfer_token + self.pull_token)

    def handing_over(self, tokens: int) -> float:
        """Seconds until decode has the KV of so many tokens from prefill."""
        return self.hand_over + tokens * self.transfer_token

    @property
    def worst_error(self) -> float:
        """The largest relative error at a figure that it was fitted to."""
        return max((abs(model / told - 1) for _, told, model in self.errors), default=0.0)
