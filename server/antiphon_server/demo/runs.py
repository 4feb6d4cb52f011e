"""The two runs of a demo: the same investigation, without and with reuse."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from openai import OpenAI

import antiphon
import antiphon_openai
from antiphon_server.bench.conditions import conditions
from antiphon_server.bench.site import Site
from antiphon_server.bench.timing import ask
from antiphon_server.demo.agent import Agent, Step, shown, warm_up
from antiphon_server.demo.record import Measured, Record, Row, verdict

PREFILL_CACHE = "off (as if prefill had evicted the prompt, or were another node)"
TIMEOUT_S = 600.0


class Watcher:
    """Who looks on. This one does not."""

    def note(self, text: str) -> None:
        """What happens next."""

    def turn(self, rows: Sequence[Row], index: int, run: str, measured: Measured) -> None:
        """A turn of a run is over; ``rows`` has it."""


def investigate_twice(site: Site, steps: Sequence[Step], watcher: Watcher, *, load: float = 0.0) -> Record:
    """Warm up, run without reuse, run with it, close, and look what is left. ``load``: of the machine
    beforehand.

    Raises:
        openai.APIError, httpx.HTTPError: a turn failed.
    """
    rows = [Row(number, step.name) for number, step in enumerate(steps, 1)]
    with _client(site) as plain, antiphon_openai.wrap(_client(site)) as wrapped:
        watcher.note("warming up: first forward passes, connection of the engines")
        salt = _salt()
        with antiphon.conversation():
            for body in warm_up(site.model):
                ask(wrapped, body, salt=salt)
        site.engines.settle()
        known = conditions(site, load=load, prefill_cache=PREFILL_CACHE)
        _run(site, plain, steps, rows, "without reuse", watcher)
        site.engines.settle()
        with antiphon.conversation():
            _run(site, wrapped, steps, rows, "with reuse", watcher)
        pinned, settled = site.engines.settle()
    return Record(tuple(rows), verdict(rows, pinned), settled, known)


def _run(
    site: Site, client: OpenAI, steps: Sequence[Step], rows: list[Row], run: str, watcher: Watcher
) -> None:
    """One investigation under a salt of its own, so that no cache serves both runs."""
    agent, salt = Agent(site.model), _salt()
    reusing = run == "with reuse"
    before = site.engines.prefill_counters()
    for index, step in enumerate(steps):
        watcher.note(f"{run}: turn {index + 1} of {len(steps)}, {step.name}")
        timed = ask(client, agent.request(step), salt=salt)
        after = site.engines.prefill_counters()
        measured = Measured(timed, (after - before).received)
        before = after
        rows[index] = _with(rows[index], reusing, measured)
        watcher.turn(rows, index, run, measured)
        agent.take(timed.answer)


def _with(row: Row, reusing: bool, measured: Measured) -> Row:
    return Row(
        row.turn,
        row.name,
        row.without if reusing else measured,
        measured if reusing else row.reusing,
        shown(measured.timed.answer),
    )


def _client(site: Site) -> OpenAI:
    return OpenAI(base_url=site.api, api_key="none", timeout=TIMEOUT_S, max_retries=0)


def _salt() -> str:
    return uuid.uuid4().hex
