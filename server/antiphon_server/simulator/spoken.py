"""An answer as the items that newer surfaces word it in: a thought, a text, a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.simulator.answer import Part
from antiphon_server.simulator.job import Output
from antiphon_server.simulator.tokens import token_bytes

SHOWN = (Part.REASONING, Part.CONTENT, Part.ARGUMENTS)


@dataclass(slots=True)
class Item:
    """``part``: what its tokens are."""

    part: Part
    text: str = ""


def items(answer: Sequence[Output]) -> list[Item]:
    """The items of an answer, in order."""
    found: list[Item] = []
    for output in answer:
        if output.part not in SHOWN:
            continue
        if not found or found[-1].part is not output.part:
            found.append(Item(output.part))
        found[-1].text += text(output)
    return found


def text(output: Output) -> str:
    """The text of one token."""
    return token_bytes(output.token).decode("utf-8", "replace")
