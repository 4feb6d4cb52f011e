"""A command line and its environment, recognised: an engine, a router, a store, or none of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from antiphon_server.doctor.declared.box import Box
from antiphon_server.doctor.declared.declared import Declared, Engine, Router, Store
from antiphon_server.doctor.declared.expand import ExpandError, expand
from antiphon_server.doctor.declared.files import UnreadError, documents, text_of
from antiphon_server.doctor.finding import Check, Finding, Severity
from antiphon_server.stack.flags import Flags, read_flags
from antiphon_server.stack.settings import Role

UNREADABLE = Check(
    "command-line",
    Severity.ERROR,
    "each command line is one that its program takes",
    "The process ends as soon as it starts.",
)
UNREAD_FILE = Check(
    "unread-file",
    Severity.WARNING,
    "every file that belongs to it could be read",
    "What stands in it is taken to be right.",
)
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELLS = ("sh", "bash", "dash", "ash")
_STORES = ("redis-server", "valkey-server")
_ANTIPHON = ("antiphon", "antiphon_server.cli")


def unread_file(subject: str, error: UnreadError, unchecked: str) -> Finding:
    """``unchecked``: what was in it, with its verb. A note where it is only not for this user's eyes, or lies
    elsewhere; what nobody can read is a fault."""
    severity = Severity.NOTE if error.forbidden or error.missing else None
    return UNREAD_FILE.finding(
        subject, f"{error}, so {unchecked} not checked", error.remedy, severity=severity
    )


@dataclass(frozen=True, slots=True)
class Command:
    """``words``: program and arguments. ``subject``: file and name, for findings. ``folder``: where relative
    paths of configuration files begin. ``unseen``: more may be set for it than ``env`` has."""

    subject: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    box: Box
    folder: Path = Path()
    unseen: bool = False


def recognised(command: Command) -> Declared:
    """What the command starts, alone; empty when it is none of ours."""
    words, env = unwrapped(command.words, command.env)
    for place, word in enumerate(words[:4]):
        name = PurePosixPath(word).name
        rest = words[place + 1 :]
        if name in _ANTIPHON and rest[:1] == ("engine",):
            return _expanded(command, rest[1:], env)
        if name in _ANTIPHON and rest[:1] == ("router",):
            return _router(command, rest[1:], env)
        if name in ("vllm", "vllm.entrypoints.cli.main") and rest[:1] == ("serve",):
            return _engine(command, None, rest[1:], env)
        if name == "vllm.entrypoints.openai.api_server":
            return _engine(command, None, rest, env)
        if name in _STORES:
            return Declared(stores=(Store(command.subject, rest, env, command.box),))
    return Declared()


def unwrapped(words: Sequence[str], env: Mapping[str, str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Without ``env NAME=value``, ``exec``, ``sh -c`` and the like in front. Of a script its first line that
    starts something of ours counts."""
    rest = list(words)
    own = dict(env)
    while rest:
        name = PurePosixPath(rest[0]).name
        if _ASSIGNED.match(rest[0]):
            key, _, value = rest.pop(0).partition("=")
            own[key] = value
        elif name in ("env", "exec", "tini", "dumb-init", "--", "nohup", "command"):
            rest.pop(0)
        elif name in _SHELLS and any(re.fullmatch("-[a-z]*c", word) for word in rest[1:3]):
            script = next((word for word in rest[1:] if not word.startswith("-")), "")
            rest = _started(script)
        else:
            break
    return tuple(rest), own


def _started(script: str) -> list[str]:
    joined = script.replace("\\\n", " ")
    for line in re.split(r"\n|;;|;|&&|\|\|", joined):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        for place, word in enumerate(words):
            if PurePosixPath(word).name in ("antiphon", "vllm", *_STORES) or "vllm.entrypoints" in word:
                return words[place - 2 if place > 1 and words[place - 1] == "-m" else place :]
    return []


def _expanded(command: Command, words: Sequence[str], env: Mapping[str, str]) -> Declared:
    try:
        role, flags, whole = expand(words, env)
    except ExpandError as error:
        what = f"antiphon engine refuses it: {error}"
        remedy = "correct it; 'antiphon engine --help' names every option"
        return Declared(unread=(UNREADABLE.finding(command.subject, what, remedy),))
    return _engine(command, role, flags, whole)


def _engine(command: Command, role: Role | None, words: Sequence[str], env: Mapping[str, str]) -> Declared:
    flags = read_flags(words)
    known = role or _role(str((flags.transfer or {}).get("kv_role")), command.subject)
    if known is None:
        return Declared(unread=tuple(_unassigned(command.subject, flags)))
    return Declared(engines=(Engine(command.subject, known, flags, env, command.box),))


def _unassigned(subject: str, flags: Flags) -> Iterator[Finding]:
    """Why an engine is none of prefill and decode. vLLM without hand-over is nothing to speak of."""
    if flags.malformed:
        what = f"--kv-transfer-config cannot be read: {flags.malformed}"
        yield UNREADABLE.finding(subject, what, "start the engine by 'antiphon engine', or correct the JSON")
    elif flags.transfer is not None:
        role = flags.transfer.get("kv_role")
        told = "vLLM's role of an engine that does both" if role == "kv_both" else "no role of vLLM's"
        what = f"kv_role is {role!r}, {told}, so it is compared with neither prefill nor decode"
        remedy = 'set "kv_role": "kv_producer" or "kv_consumer", or call it prefill or decode'
        why = (
            "Antiphon hands over from prefill to decode; what does both is served as a stock engine at best."
        )
        yield UNREADABLE.finding(subject, what, remedy, why=why, severity=Severity.WARNING)


def _role(kv_role: str, subject: str) -> Role | None:
    by_name = [role for role in (Role.PREFILL, Role.DECODE) if role.value in subject.lower()]
    if len(by_name) == 1:
        return by_name[0]
    return {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}.get(kv_role)


def _router(command: Command, words: Sequence[str], env: Mapping[str, str]) -> Declared:
    from antiphon_server.router.config.options import FILE_TWIN, options

    known = {option.flag: option for option in options()}
    flags: dict[str, Any] = {}
    config = env.get("ANTIPHON_CONFIG")
    unread = []
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        option = known.get(name)
        if option is not None and option.kind == "switch":
            flags[option.name] = "true"
            continue
        if name.startswith("--no-") and (off := known.get(f"--{name[5:]}")):
            flags[off.name] = "false"
            continue
        if not equals:
            value = rest.pop(0) if rest else ""
        if name == "--config":
            config = value
        elif option is None:
            what = f"antiphon router has no option {name}"
            remedy = "correct it; 'antiphon router --help' names every option"
            unread.append(UNREADABLE.finding(command.subject, what, remedy))
        elif option.many:
            flags.setdefault(option.name, []).append(value)
        else:
            flags[option.name + FILE_TWIN if option.secret else option.name] = value
    path = (command.folder / config) if config else None
    unseen = command.unseen
    if path is not None:
        try:
            # The router's own reader comes later, and has no bounds.
            documents(path, text_of(path))
        except UnreadError as error:
            path, unseen = None, True
            unread.append(unread_file(command.subject, error, "its settings were"))
    router = Router(command.subject, flags, env, command.box, path, unseen)
    return Declared(routers=(router,), unread=tuple(unread))
