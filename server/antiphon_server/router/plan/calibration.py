"""What the rates start from: a few turns of the router's own on engines that have just come up.

Each turn takes a given path through given engines, in the way of every turn, and the rates learn from it.
Prompts are short at first and grow only while the engine is fast enough, so that a slow machine is not kept
busy.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from antiphon_server.router.errors import RouterError
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.gate.tenants import Tenant
from antiphon_server.router.keep.conversations import CALIBRATION
from antiphon_server.router.plan.reasons import Path
from antiphon_server.router.state import State
from antiphon_server.router.turn.reply import Reply
from antiphon_server.router.turn.request import Forced
from antiphon_server.router.turn.turn import Turns

log = logging.getLogger(__name__)

_TENANT = Tenant(name=CALIBRATION, named=True)
_WORDS = ("agent", "answer", "block", "choir", "decode", "engine", "handle", "lease", "prefix", "token")
_LENGTHS = (64, 512, 2048)
_MORE = 48
_ANSWER = 4
"""Words of the first turn, of each later turn, and tokens of an answer."""


@dataclass(frozen=True, slots=True)
class _Task:
    prefill: Worker
    decode: Worker


class Calibration:
    """Measures each prefill engine with some decode engine and each decode engine with some prefill engine.

    ``limit``: seconds that the turns of one pair may take; no longer prompt is begun when half of it is over.
    """

    def __init__(self, state: State, turns: Turns, *, limit: float = 6.0) -> None:
        self._state = state
        self._turns = turns
        self._limit = limit
        self._measured: dict[str, str | None] = {}

    async def run(self) -> None:
        """For ever: measure what is new, also after an engine's restart."""
        while True:
            for task in self._due():
                await self.measure(task.prefill, task.decode)
            await asyncio.sleep(self._state.settings.probe_interval)

    async def measure(self, prefill: Worker, decode: Worker) -> None:
        """Every way that a prompt's KV comes to be, at growing lengths."""
        clock = self._state.clock
        began = clock()
        for length in _LENGTHS:
            started = clock()
            try:
                await self._conversation(prefill, decode, length)
            except RouterError as error:
                log.warning(
                    "calibration.failed",
                    extra={"prefill": prefill.name, "decode": decode.name, "cause": error.message},
                )
                break
            longer = (clock() - started) * 4
            if clock() - began + longer > self._limit:
                break
        self._measured[prefill.name], self._measured[decode.name] = prefill.epoch, decode.epoch
        log.info("calibration.done", extra={"prefill": prefill.name, "decode": decode.name})

    def _due(self) -> list[_Task]:
        workers = self._state.workers
        prefills = [w for w in workers.prefill if w.available and w.reuse]
        decodes = [w for w in workers.decode if w.available and w.reuse]
        if not (prefills and decodes):
            return []
        new = [i for i, w in enumerate(prefills) if self._new(w)]
        tasks = [_Task(prefills[i], decodes[i % len(decodes)]) for i in new]
        covered = {task.decode.name for task in tasks}
        tasks += [
            _Task(prefills[i % len(prefills)], w)
            for i, w in enumerate(decodes)
            if self._new(w) and w.name not in covered
        ]
        return tasks

    def _new(self, worker: Worker) -> bool:
        return worker.name not in self._measured or self._measured[worker.name] != worker.epoch

    async def _conversation(self, prefill: Worker, decode: Worker, length: int) -> None:
        # Where decode computes a prompt alone, prefill has nothing of it, and pulls enough to be measured.
        # Other streams there would be slowed down by that.
        first = None if decode.in_flight == 0 else prefill
        await self._run(decode, length, (first, Path.COLD), (prefill, Path.REUSE), (prefill, Path.APPEND))
        if first is None:
            await self._run(decode, length, (prefill, Path.COLD))

    async def _run(self, decode: Worker, length: int, *turns: tuple[Worker | None, Path]) -> None:
        """The turns of one conversation."""
        conversation = f"calibration-{secrets.token_hex(8)}"
        prompt = self._words(length)
        try:
            for prefill, path in turns:
                forced = Forced(prefill, decode, frozenset({path}))
                answer = await self._ask(prompt, conversation, forced)
                prompt = f"{prompt}{answer} {self._words(_MORE)}"
        finally:
            await self._state.conversations.close(_TENANT.name, conversation)

    async def _ask(self, prompt: str, conversation: str, forced: Forced) -> str:
        assert forced.decode.info is not None
        body = {
            "model": forced.decode.info.model,
            "prompt": prompt,
            "max_tokens": _ANSWER,
            "temperature": 0,
            "stream": True,
            "conversation_id": conversation,
            "cache_salt": conversation,
        }
        sink = _Sink()
        headers: Mapping[str, str] = {}
        await self._turns.serve(
            "completions", msgspec.json.encode(body), headers, Reply(sink.send), _TENANT, forced
        )
        return sink.text()

    def _words(self, count: int) -> str:
        return " ".join(random.choices(_WORDS, k=count))


class _Sink:
    """The client of a turn of our own."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    async def send(self, message: object) -> None:
        if isinstance(message, dict):
            self._parts.append(message.get("body", b""))

    def text(self) -> str:
        """The answer."""
        words = []
        for event in b"".join(self._parts).split(b"\n\n"):
            if event.startswith(b"data: {"):
                choices = msgspec.json.decode(event[len(b"data: ") :]).get("choices") or [{}]
                words.append(choices[0].get("text") or "")
        return "".join(words)
