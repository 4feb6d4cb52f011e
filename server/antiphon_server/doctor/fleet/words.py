"""What probes say: text that no other request begins with."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import islice

from antiphon_server.text import cut, lines

Ids = Callable[[str], list[int]]


def fresh() -> str:
    """A name that nobody has used."""
    return f"antiphon-doctor-{uuid.uuid4().hex}"


def log(tokens: int, ids: Ids) -> list[int]:
    """So many tokens of a server's log; another one each time."""
    text = ""
    found: list[int] = []
    source = lines(uuid.uuid4().int)
    while len(found) < tokens:
        text += "".join(islice(source, 1 + (tokens - len(found)) // 20))
        found = ids(text)
    return found[:tokens]


def log_text(characters: int) -> str:
    """The same, in characters."""
    return cut(uuid.uuid4().int, characters)


def code_said(code: int) -> str:
    """What a later question is about; twice, so that no model misses it."""
    return f"\nThe code of the vault is {code}. Keep it in mind: the code of the vault is {code}.\n"


QUESTION = "\nWhat is the code of the vault? The code of the vault is"
