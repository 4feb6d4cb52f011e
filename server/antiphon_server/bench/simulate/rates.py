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

    ``transfer``, ``transfer_token``: moving KV, either way. ``pull``, ``pull_token``: what prefill needs
    beside the transfer to take KV from decode; ``hand_over``, ``hand_over_token``: what decode needs beside
    the transfer to take it from prefill. ``links``: transfers that an engine makes at once, later ones wait;
    0: any number. ``tokenize``: on whichever engine gets text.

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
    hand_over_token: float = 0.0
    links: int = 0
    tokenize: float = 0.0
    bytes_per_token: int = 0
    assumed: tuple[str, ...] = ()
    errors: tuple[tuple[str, float, float], ...] = ()

    def compute(self, new: int, before: int) -> float:
        """Seconds to compute ``new`` tokens that follow ``before`` others, once it is their turn."""
        return new * (self.token + self.attention * (before + new / 2) / 1000)

    def move(self, tokens: int) -> float:
        """Seconds to move the KV of so many tokens."""
        return self.transfer + tokens * self.transfer_token

    @property
    def worst_error(self) -> float:
        """The largest relative error at a figure that it was fitted to."""
        return max((abs(model / told - 1) for _, told, model in self.errors), default=0.0)
