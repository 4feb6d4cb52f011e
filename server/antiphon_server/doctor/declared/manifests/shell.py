"""Shell lines, as ``antiphon up --print`` and ``antiphon engine --print`` give them, of one machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from antiphon_server.doctor.declared.box import Box
from antiphon_server.doctor.declared.command_line import UNREADABLE, Command, recognised
from antiphon_server.doctor.declared.declared import HIDDEN, Declared
from antiphon_server.doctor.declared.manifests.scene import Scene
from antiphon_server.doctor.declared.manifests.secrets import plain
from antiphon_server.doctor.finding import Severity

_OURS = re.compile(r"\bantiphon(\.cli)?\s+(engine|router)\b|\bvllm\s+serve\b|vllm\.entrypoints")
_TITLE = re.compile(r"#\s*([\w.-]+):")
_REFERENCE = re.compile(r"\$\{?(\w+)\}?")
_SET = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=")


def shell(path: Path, text: str) -> Scene:
    """Every command of the file on one machine. A comment ``# name: ...`` in front names it; variables that
    are set on lines of their own count for those behind."""
    found = Declared()
    name = ""
    exported: dict[str, str] = {}
    for line in _lines(text):
        if title := _TITLE.match(line):
            name = title[1]
            continue
        try:
            words = [_hidden(word) for word in shlex.split(line, comments=True)]
        except ValueError as error:
            if _OURS.search(line):
                subject = f"{path.name}: {name or 'a line'}"
                what = f"its quotation marks do not close on its line ({error}), so it was not checked"
                remedy = "correct them, or write the command on one line"
                said = UNREADABLE.finding(subject, what, remedy, severity=Severity.WARNING)
                found += Declared(unread=(said,))
            name = ""
            continue
        given = words[1:] if words[:1] == ["export"] else words
        if given and all(_SET.match(word) for word in given):
            exported |= {word.partition("=")[0]: word.partition("=")[2] for word in given}
            continue
        subject = f"{path.name}: {name or 'line ' + str(text[: text.find(line[:20])].count(chr(10)) + 1)}"
        part = recognised(
            Command(subject, tuple(words), exported, Box(manager="shell", network=path.name, node=path.name))
        )
        written = {word.partition("=")[0]: word.partition("=")[2] for word in words if _SET.match(word)}
        found += part + Declared(plain=plain(subject, written)) if part else part
        name = ""
    return Scene(path.name, found)


def _lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            yield line.strip()


def _hidden(word: str) -> str:
    """A variable of the shell is not known here."""
    name, equals, value = word.partition("=")
    if equals and _REFERENCE.fullmatch(value):
        return f"{name}={HIDDEN} {value}"
    return word
