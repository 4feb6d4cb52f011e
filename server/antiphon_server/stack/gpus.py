"""GPUs as people name them: ``0-3``, ``4,5``, or by the names that NVIDIA gives them."""

from __future__ import annotations

import re

MOST = 1024
"""Numbers of GPUs are below it: far more than a host has, and few enough to count out."""

_NAME = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def read_gpus(text: str) -> tuple[str, ...]:
    """``0-2,5`` as 0, 1, 2, 5; names, such as those of MIG devices, as they are; of nothing, nothing.

    Raises:
        ValueError: it names no GPUs, or one twice. The message has the value and the remedy.
    """
    if not text.strip():
        return ()
    named = [gpu for part in text.split(",") for gpu in _read(part.strip(), text)]
    if twice := sorted({gpu for gpu in named if named.count(gpu) > 1}):
        raise ValueError(f"gpus = {text}: name {twice[0]} once")
    return tuple(named)


def _read(part: str, text: str) -> list[str]:
    if _NAME.fullmatch(part):
        return [part]
    if (found := _NUMBERS.fullmatch(part)) is None:
        raise ValueError(f"gpus = {text}: '{part}' is no GPU: name them as 0-3, 4,5, GPU-... or MIG-...")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise ValueError(f"gpus = {text}: '{part}' ends before it begins: write {last}-{first}")
    if last >= MOST:
        raise ValueError(f"gpus = {text}: '{part}' is beyond {MOST - 1}: name GPUs that this host has")
    return [str(number) for number in range(first, last + 1)]
