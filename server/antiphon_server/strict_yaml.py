"""YAML files, read strictly: nothing is there twice, and whatever is wrong is one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class YamlError(ValueError):
    """A file that is not taken. ``cause``: what is wrong, without a word of the file. ``place``: where, as
    `` in line 1, column 2``, or empty. ``problem``: the parser's own words, which may quote the file; empty
    where the cause says it all."""

    def __init__(self, cause: str, remedy: str, *, mark: yaml.Mark | None = None, problem: str = "") -> None:
        self.cause, self.remedy, self.problem = cause, remedy, problem
        self.place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        super().__init__(f"{cause}{self.place}" + (f": {problem}" if problem else ""))


class LocatingLoader(yaml.SafeLoader):
    """Says where a value is that cannot be what it is written as, such as a date in month 13."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, YamlError, RecursionError):
            raise
        except Exception as error:  # whatever Python's own types raise: ValueError, KeyError, ...
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


class StrictLoader(LocatingLoader):
    """Refuses a name that is there twice, of which YAML would take the last, and merge keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag == _MERGE:
                raise YamlError("has merge keys (<<)", "write out what they stand for", mark=key.start_mark)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                mark = node.value[index][0].start_mark
                raise YamlError("has a name twice", "keep one of them", mark=mark, problem=str(key))
        return super().construct_mapping(node, deep)


def read_yaml(file: Path) -> Any:
    """What a file says; None where it is empty.

    Raises:
        YamlError
    """
    return parse(text_of(file))


def text_of(file: Path) -> str:
    """What stands in a file.

    Raises:
        YamlError: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise YamlError(f"cannot be read: {error.strerror}", "name a readable file") from error
    except UnicodeDecodeError:
        raise YamlError("cannot be read: it is not UTF-8 text", "name a readable file") from None


def parse(text: str) -> Any:
    """What a file's text says. Errors are not chained: the parser's quote the line.

    Raises:
        YamlError
    """
    try:
        return yaml.load(text, Loader=StrictLoader)
    except YamlError:
        raise
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise YamlError("is not YAML", "correct it", mark=mark, problem=problem or "unreadable") from None
    except RecursionError:
        raise YamlError("is nested too deeply", "correct it") from None
    except (ValueError, OverflowError) as error:  # of an escaped sign that is none
        raise YamlError("is not YAML", "correct it", problem=str(error)) from None
