"""Configurations of vLLM's multi-turn benchmark: conversations by distributions of their lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from antiphon_server.traces.error import TraceError, UnreadableError
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.number import count, number
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call, Conversation

if TYPE_CHECKING:
    from numpy.random import Generator

TYPE = "generate_conversations"
SEED = 0
MOST = 1_000_000
"""Calls that a configuration may ask for."""


def fits(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("filetype") == TYPE


class Reader:
    def __init__(self, pool: Pool) -> None:
        self._found: list[Conversation] = []
        self._common: set[int] = set()

    def add(self, document: Document) -> None:
        value = document.value
        if not fits(value):
            raise UnreadableError(
                f'expected {{"filetype": "{TYPE}", "num_conversations", "prompt_input", ...}}'
            )
        source = _source(document)
        conversations = count(value.get("num_conversations"))
        if not conversations:
            raise UnreadableError('expected "num_conversations" above 0')
        if conversations > MOST:
            raise UnreadableError(f'expected "num_conversations" of at most {MOST}')
        turns = _drawn(value, "prompt_input", "num_turns", conversations, source)
        prefixes = _drawn(value, "prompt_input", "prefix_num_tokens", conversations, source)
        common = _drawn(value, "prompt_input", "common_prefix_num_tokens", 1, source, optional=True)[0]
        if sum(turns) > 2 * MOST:
            raise UnreadableError(f'expected "num_turns" that give at most {MOST} calls')
        stem = document.path.name.split(".", 1)[0]
        for index, (own, prefix) in enumerate(zip(turns, prefixes, strict=True)):
            answers = (max(own, 2) + 1) // 2
            asked = _drawn(value, "prompt_input", "num_tokens", answers, source)
            answered = _drawn(value, "prompt_output", "num_tokens", answers, source)
            self._found.append(Conversation(f"{stem}-{index}", _calls(common, prefix, asked, answered)))
        self._common.add(common)

    def end(self) -> Reading:
        notes = [
            "lengths were drawn as the benchmark draws them, with a seed of their own: it will draw others",
            "the source has no times: no gaps are known",
        ]
        if any(self._common):
            notes.append(f"all conversations begin with the same {max(self._common)} tokens")
        return Reading(self._found, notes=notes if self._found else ())


def _calls(common: int, prefix: int, asked: list[int], answered: list[int]) -> tuple[Call, ...]:
    """Each prompt is the last one, its answer and what is asked now. The prefix that all conversations have
    in common counts as asked first, a conversation's own does not."""
    found: list[Call] = []
    held = 0
    for index, (new, answer) in enumerate(zip(asked, answered, strict=True)):
        prompt = held + max(new, 1) if index else max(new, common, 1) + prefix
        found.append(Call(prompt, max(answer, 1), shared=held if index else None))
        held = prompt + max(answer, 1)
    return tuple(found)


def _source(document: Document) -> Generator:
    try:
        from numpy.random import default_rng
    except ImportError as error:
        raise TraceError(
            f"{document.where}: its lengths are drawn with numpy: install antiphon[bench]"
        ) from error
    return default_rng(SEED)


def _drawn(
    value: Mapping[str, Any],
    section: str,
    name: str,
    times: int,
    source: Generator,
    *,
    optional: bool = False,
) -> list[int]:
    """So many numbers of a distribution; all 0 where it is left out and may be."""
    within = value.get(section)
    said = within.get(name) if isinstance(within, Mapping) else None
    if said is None and optional:
        return [0] * times
    where = f"{section}.{name}"
    if not isinstance(said, Mapping):
        raise UnreadableError(f'expected {{"distribution": ...}} as "{where}"')
    drawn = _distribution(said, where, times, source)
    most = number(said.get("max")) if said.get("distribution") != "uniform" else None
    return [min(int(n), int(most or 1e9)) for n in drawn]


def _distribution(said: Mapping[str, Any], where: str, times: int, source: Generator) -> Any:
    def given(name: str, least: float = 0.0) -> float:
        found = number(said.get(name))
        if found is None or found < least or found > 1e9:
            raise UnreadableError(f'expected "{name}" from {least:g} to 1e9 in "{where}"')
        return found

    match said.get("distribution"):
        case "constant":
            return [given("value")] * times
        case "uniform":
            least = given("min")
            return source.integers(int(least), int(given("max", least)) + 1, times)
        case "poisson":
            return source.poisson(given("alpha"), times)
        case "zipf":
            return source.zipf(given("alpha", 1.0001), times).clip(max=10**9)
        case "lognormal" if "average" in said:
            return _lognormal(source, given("average", 1.0), number(said.get("median_ratio")) or 0.85, times)
        case "lognormal":
            return source.lognormal(min(given("mean"), 20.0), min(given("sigma"), 5.0), times).round()
        case other:
            raise UnreadableError(
                f'expected "constant", "uniform", "lognormal", "zipf" or "poisson" in "{where}": {other!r}'
            )


def _lognormal(source: Generator, average: float, median_ratio: float, times: int) -> Any:
    """Numbers with this average; their median is so much of it."""
    from numpy import log, sqrt

    ratio = min(max(median_ratio, 1e-6), 1.0)
    drawn = source.lognormal(log(average * ratio), sqrt(-2.0 * log(ratio)), times)
    return (drawn * (average / drawn.mean())).round()


FORMAT = Format(
    "vllm_multi_turn",
    'vLLM\'s multi-turn benchmark, {"filetype": "generate_conversations"}: lengths only (its files of '
    "conversations are `messages`)",
    "figures",
    fits,
    Reader,
)
