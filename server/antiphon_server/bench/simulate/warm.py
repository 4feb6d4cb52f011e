"""What the router's rates start from, as on engines that have just come up: a few turns of its own, each
through given engines. See :mod:`antiphon_server.router.plan.calibration`."""

from __future__ import annotations

from antiphon_server.bench.simulate.memory import Talk
from antiphon_server.bench.simulate.router import Router
from antiphon_server.bench.simulate.workload import Turn
from antiphon_server.router.fleet.worker import Worker
from antiphon_server.router.keep.conversations import CALIBRATION
from antiphon_server.router.plan.reasons import Path
from antiphon_server.router.turn.request import Forced

_LENGTHS = (64, 512, 2048)
_MORE = 48
_ANSWER = 4


async def calibrate(router: Router) -> None:
    """Every engine once."""
    prefills, decodes = router.state.workers.prefill, router.state.workers.decode
    for number in range(max(len(prefills), len(decodes))):
        pair = prefills[number % len(prefills)], decodes[number % len(decodes)]
        for length in _LENGTHS:
            name = f"{number}.{length}"
            await _run(
                router,
                pair[1],
                f"{name}.a",
                length,
                (None, Path.COLD),
                (pair[0], Path.REUSE),
                (pair[0], Path.APPEND),
            )
            await _run(router, pair[1], f"{name}.b", length, (pair[0], Path.COLD))


async def _run(
    router: Router, decode: Worker, name: str, length: int, *turns: tuple[Worker | None, Path]
) -> None:
    talk, prompt = Talk(name), length
    for talk.turn, (prefill, path) in enumerate(turns):
        forced = Forced(prefill, decode, frozenset({path}))
        await router.serve(talk, talk.turn, Turn(0.0, prompt, _ANSWER), forced, CALIBRATION)
        prompt += _ANSWER + _MORE
    await router.close(talk, CALIBRATION)
