"""A toy tokenizer: one token a byte, and one for each marker of the chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

START = "<|im_start|>"
END = "<|im_end|>"
_MARKERS = {START: 256, END: 257}
_MARKER_TEXT = {token: text for text, token in _MARKERS.items()}
_SPLIT = re.compile(f"({re.escape(START)}|{re.escape(END)})")
_PAIRS = 512
_LETTERS = range(ord("a"), ord("z") + 1)

END_TOKEN = _MARKERS[END]
VOCABULARY = _PAIRS + 26 * 26


class Tokenizer:
    """Text to ids and back. ``decode(encode(text)) == text`` always.

    With ``drift`` two lower-case letters in a row become one token, while the model samples them one by one:
    then ``encode(decode(ids)) != ids`` for every answer with two letters in a row, as with a real BPE.
    """

    def __init__(self, *, drift: bool = False) -> None:
        self._drift = drift

    def encode(self, text: str) -> list[int]:
        """Ids of the text; markers of the template are single tokens."""
        ids: list[int] = []
        for piece in _SPLIT.split(text):
            if piece in _MARKERS:
                ids.append(_MARKERS[piece])
            else:
                raw = piece.encode("utf-8", "surrogatepass")
                ids.extend(_merged(raw) if self._drift else raw)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, markers included; half a character reads as U+FFFD."""
        return b"".join(token_bytes(token) for token in ids).decode("utf-8", "replace")


def token_bytes(token: int) -> bytes:
    """The bytes that a token stands for.

    Raises:
        ValueError: no such token.
    """
    if 0 <= token < 256:
        return bytes((token,))
    if token in _MARKER_TEXT:
        return _MARKER_TEXT[token].encode()
    if _PAIRS <= token < VOCABULARY:
        first, second = divmod(token - _PAIRS, 26)
        return bytes((_LETTERS[first], _LETTERS[second]))
    raise ValueError(f"token {token} is not in the vocabulary of {VOCABULARY}")


def _merged(raw: bytes) -> Iterable[int]:
    position = 0
    while position < len(raw):
        pair = raw[position : position + 2]
        if len(pair) == 2 and pair[0] in _LETTERS and pair[1] in _LETTERS:
            yield _PAIRS + 26 * (pair[0] - _LETTERS[0]) + pair[1] - _LETTERS[0]
            position += 2
        else:
            yield raw[position]
            position += 1
