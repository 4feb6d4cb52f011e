"""``Dockerfile`` as a builder reads it: stages, their instructions, what a container of one starts with."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "server" / "deploy" / "docker"
DOCKERFILE = FOLDER / "Dockerfile"


@dataclass(frozen=True)
class Stage:
    """``steps``: instruction and value, in order."""

    name: str
    base: str
    steps: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        """Values of all such instructions."""
        return [value for what, value in self.steps if what == instruction]

    def one(self, instruction: str) -> str:
        """The value of the only one."""
        (value,) = self.all(instruction)
        return value

    @property
    def entrypoint(self) -> list[str]:
        words: list[str] = json.loads(self.one("ENTRYPOINT"))
        return words

    @property
    def health(self) -> list[str]:
        words: list[str] = json.loads(self.one("HEALTHCHECK").partition(" CMD ")[2])
        return words

    @property
    def env(self) -> dict[str, str]:
        """As they are written: other variables are not put in."""
        return dict(word.split("=", 1) for value in self.all("ENV") for word in shlex.split(value))

    @property
    def arguments(self) -> dict[str, str]:
        return dict(_argument(value) for value in self.all("ARG"))


def stages() -> dict[str, Stage]:
    """All of them, by name; ``""`` has what stands before the first."""
    found = [Stage("", "", ())]
    for step in _parsed():
        what, value = step["instruction"], step["value"]
        if what == "FROM":
            base, _, name = value.partition(" AS ")
            found.append(Stage(name, base, ()))
        elif what != "COMMENT":
            last = found[-1]
            found[-1] = Stage(last.name, last.base, (*last.steps, (what, value)))
    return {stage.name: stage for stage in found}


def arguments() -> dict[str, str]:
    """All build arguments with their defaults."""
    return {name: value for stage in stages().values() for name, value in stage.arguments.items()}


def _argument(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, re.sub(r"^\"(.*)\"$", r"\1", value)


def _parsed() -> list[dict[str, str]]:
    # It would write the parser's own file where it is given none.
    with DOCKERFILE.open("rb") as file:
        structure: list[dict[str, str]] = DockerfileParser(fileobj=file).structure
    return structure
