"""The sweep: second turns of conversations, over prompt lengths, cold and with reuse."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from openai import OpenAI

import antiphon
import antiphon_openai
from antiphon_server.bench.conditions import conditions
from antiphon_server.bench.site import Site
from antiphon_server.bench.sweep.record import Cache, Sample, Sweep, rows_of
from antiphon_server.bench.text import cut, fit
from antiphon_server.bench.timing import Answer, ask

SYSTEM = "You read logs and answer in a few words."
ANSWER_TOKENS = 32
TIMEOUT_S = 900.0
_FIRST, _SECOND, _WARM_UP = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Plan:
    """``lengths``: tokens of the second turn's prompt. ``new``: of its last message. ``answer``: of the
    first turn's answer."""

    lengths: tuple[int, ...]
    repeat: int = 3
    new: int = 300
    answer: int = 200


def measure(
    site: Site, plan: Plan, note: Callable[[str], None] = lambda text: None, *, load: float = 0.0
) -> Sweep:
    """Measure all of ``plan``, one conversation after the other.

    Raises:
        openai.APIError, httpx.HTTPError: a turn failed.
    """
    bench = _Bench(site, plan)
    with contextlib.closing(bench):
        states = bench.states()
        note("warming up: first forward passes, connections between the engines")
        bench.warm_up()
        words = " and ".join(state.value for state in states)
        known = conditions(site, load=load, prefill_cache=words)
        samples: list[Sample] = []
        for length in plan.lengths:
            first, second = bench.messages(length)
            for number in range(1, plan.repeat + 1):
                for cache in states:
                    for reuse in (False, True):
                        sample = bench.sample(length, first, second, cache, reuse)
                        samples.append(sample)
                        note(_told(sample, number))
    return Sweep(rows_of(samples), plan.new, plan.answer, plan.repeat, tuple(samples), known)


class _Bench:
    def __init__(self, site: Site, plan: Plan) -> None:
        self._site = site
        self._plan = plan
        self._http = httpx.Client(base_url=site.router, timeout=60.0, trust_env=False)
        self._plain, self._wrapped = _client(site), antiphon_openai.wrap(_client(site))
        self._forgets = False

    def close(self) -> None:
        for client in (self._http, self._plain, self._wrapped):
            client.close()

    def states(self) -> tuple[Cache, ...]:
        """What this site's prefill cache can be when a second turn comes."""
        engines = self._site.engines
        if engines.prefill_caching() is False:
            return (Cache.EMPTY,)
        engines.settle()
        self._forgets = engines.forget_prefill()
        return (Cache.EMPTY, Cache.WARM) if self._forgets else (Cache.WARM,)

    def warm_up(self) -> None:
        self._two_turns(cut(_WARM_UP, 600), cut(_WARM_UP, 200), Cache.WARM, reuse=True, salt=_salt())
        self._site.engines.settle()

    def messages(self, length: int) -> tuple[str, str]:
        """First and second message, such that the second turn's prompt has ``length`` tokens."""
        fixed = self._frame() + self._plan.new + self._plan.answer
        rest = length - fixed
        if rest < 1:
            shortest = fixed + 1
            raise ValueError(f"{length} tokens are too few for a second turn: take {shortest} or more")
        return fit(_FIRST, rest, self._count), fit(_SECOND, self._plan.new, self._count)

    def sample(self, length: int, first: str, second: str, cache: Cache, reuse: bool) -> Sample:
        """One conversation of two turns, of which the second is measured."""
        sample = self._two_turns(first, second, cache, reuse=reuse, salt=_salt(), length=length)
        self._site.engines.settle()
        return sample

    def _two_turns(
        self, first: str, second: str, cache: Cache, *, reuse: bool, salt: str, length: int = 0
    ) -> Sample:
        engines = self._site.engines
        client = self._wrapped if reuse else self._plain
        messages = _opening(first)
        with antiphon.conversation() if reuse else contextlib.nullcontext():
            said = ask(client, self._body(messages, self._plan.answer), salt=salt).answer
            if cache is Cache.EMPTY and self._forgets:
                engines.forget_prefill()
            messages += [_said(said), {"role": "user", "content": second}]
            prefill, decode = engines.prefill_counters(), engines.decode_counters()
            timed = ask(client, self._body(messages, ANSWER_TOKENS), salt=salt)
            prefill, decode = engines.prefill_counters() - prefill, engines.decode_counters() - decode
        return Sample(length, cache, reuse, timed, prefill, decode)

    def _body(self, messages: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
        return {
            "model": self._site.model,
            "messages": list(messages),
            "temperature": 0,
            "seed": 7,
            "max_tokens": limit,
        }

    def _count(self, text: str) -> int:
        return self._tokens(prompt=text, add_special_tokens=False)

    def _frame(self) -> int:
        """Tokens of the second turn's prompt without the two messages and the answer."""
        history = [*_opening(""), {"role": "assistant", "content": ""}, {"role": "user", "content": ""}]
        return self._tokens(messages=history)

    def _tokens(self, **asked: Any) -> int:
        reply = self._http.post("/tokenize", json={"model": self._site.model, **asked})
        return int(reply.raise_for_status().json()["count"])


def _client(site: Site) -> OpenAI:
    return OpenAI(base_url=site.api, api_key="none", timeout=TIMEOUT_S, max_retries=0)


def _opening(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def _said(answer: Answer) -> dict[str, Any]:
    return {"role": "assistant", "content": answer.text}


def _told(sample: Sample, number: int) -> str:
    timed = sample.timed
    return (
        f"{sample.target:>6} tokens, cache {sample.cache.value:<5}, {'reuse' if sample.reuse else 'cold':<5} "
        f"#{number}  TTFT {timed.ttft:6.2f} s  {timed.outcome.path} ({timed.outcome.reason}), "
        f"{timed.outcome.matched} matched"
    )


def _salt() -> str:
    return uuid.uuid4().hex
