"""What is wrong with a file of traffic."""

from __future__ import annotations


class TraceError(ValueError):
    """Traffic cannot be read. The message names the file, the line where there is one, what was expected
    there and what to do."""


class UnreadableError(Exception):
    """One record is not what its format says; the others may be. The message says what was expected."""
