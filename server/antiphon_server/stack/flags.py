"""What stands in a list of vLLM's flags."""

from __future__ import annotations

from collections.abc import Sequence


def flag_value(flags: Sequence[str], *names: str) -> str | None:
    """What is given for a flag under one of its names; the last one wins, as in vLLM. None: not there."""
    value = None
    for position, word in enumerate(flags):
        name, equals, given = word.partition("=")
        if word in names:
            value = flags[position + 1] if position + 1 < len(flags) else ""
        elif equals and name in names:
            value = given
    return value


def flag_count(flags: Sequence[str], *names: str) -> int | None:
    """The same as a number of 1 or more; None where vLLM will refuse it, too."""
    value = flag_value(flags, *names)
    return int(value) if value is not None and value.isdecimal() and int(value) > 0 else None
