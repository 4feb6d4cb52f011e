"""What ``--print`` shows, as a shell would read it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from antiphon_server.cli import app


@dataclass(frozen=True)
class Printed:
    """``argv`` without the Python that runs it."""

    name: str
    url: str
    env: dict[str, str]
    argv: tuple[str, ...]


def commands(*words: str, environ: dict[str, Any] | None = None) -> dict[str, Printed]:
    """What ``antiphon`` prints for these words and ``--print``, by name of the process."""
    ran = CliRunner().invoke(app, [words[0], "--print", *words[1:]], env=environ)
    assert ran.exit_code == 0, ran.output
    return printed(ran.stdout)


def printed(text: str) -> dict[str, Printed]:
    """The commands in a text, by name of the process."""
    return {one.name: one for block in text.split("# ")[1:] for one in [_read(block)]}


def _read(block: str) -> Printed:
    comment, _, line = block.partition("\n")
    name, _, url = comment.partition(": ")
    words = shlex.split(line.replace("\\\n", " "))
    assert words[0] == "env"
    last = next(place for place, word in enumerate(words[1:], 1) if "=" not in word)
    env = dict(word.split("=", 1) for word in words[1:last])
    return Printed(name, url, env, tuple(words[last + 1 :]))
