"""A conversation through the router, as agents have them, beside the same turns without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from antiphon_server.doctor.finding import Fact, Finding
from antiphon_server.doctor.fleet import checks, words
from antiphon_server.doctor.fleet.answer import Answer, MalformedError, gap, read, read_chat, tolerance
from antiphon_server.doctor.fleet.asking import bearer
from antiphon_server.doctor.fleet.client import Patience, client
from antiphon_server.doctor.fleet.exactness import Compared, judged
from antiphon_server.doctor.fleet.pair import LegError
from antiphon_server.router.plan.reasons import Reason

CHARACTERS = 2000
ANSWER = 16
LIKELY = 5
PATH = "/v1/chat/completions"
_CODES = (7316, 4829)

_IN_VAIN = frozenset(
    {
        Reason.LOST,
        Reason.EXPIRED,
        Reason.RESTARTED,
        Reason.UNHEALTHY,
        Reason.UNSEALED,
        Reason.FOREIGN,
        Reason.FAILED,
        Reason.ANONYMOUS,
        Reason.FIRST,
    }
)
"""Why a second turn is cold where there was something to reuse, or should have been. Others are choices, or
the engines' own."""

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Talked:
    """``reuse``: the router's own words on each turn of the conversation, oldest first."""

    appended: Compared
    rewritten: Compared
    reuse: tuple[str, ...]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Part(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Part] | None = None


class Conversation:
    """``key``: a client's, for the router. ``context``: tokens that the model takes, None where unknown."""

    def __init__(
        self, router: str, model: str, *, key: str | None, context: int | None, patience: Patience
    ) -> None:
        self._router = router.rstrip("/")
        self._model = model
        self._characters = min(CHARACTERS, (context or CHARACTERS * 3) // 3)
        self._key = key
        self._patience = patience
        self._http = client(patience.leg, left=patience.left, headers=bearer(key))
        self._id = words.fresh()
        self._reuse: list[str] = []

    def talk(self, dtype: str | None) -> Talked:
        """Three turns, the last with a history that was rewritten; and each without the conversation. Ends
        the conversation.

        Raises:
            LegError: a turn failed.
        """
        with self._http, contextlib.ExitStack() as ends:
            ends.callback(self._end)
            salt = words.fresh()
            before, after = words.log_text(self._characters // 2), words.log_text(self._characters // 2)
            first = [_user(before + words.code_said(code) + after + words.QUESTION) for code in _CODES]
            said = self._stream([first[0]], salt)
            turns = [[one, {"role": "assistant", "content": said}, _user(words.QUESTION)] for one in first]
            reused = [self._ask(turn, salt, self._id) for turn in turns]
            computed = [self._ask(turn, words.fresh(), None) for turn in turns]
            noise = gap(computed[0], self._ask(turns[0], words.fresh(), None))
        allowed = tolerance(dtype, noise)
        appended, rewritten = (
            Compared(one, other, allowed) for one, other in zip(reused, computed, strict=True)
        )
        return Talked(appended, rewritten, tuple(self._reuse))

    def _end(self) -> None:
        # Whatever else is late, this is tried.
        with (
            contextlib.suppress(httpx.HTTPError),
            client(self._patience.answer, headers=bearer(self._key)) as http,
        ):
            http.delete(f"{self._router}/v1/conversations/{self._id}")

    def _stream(self, messages: Messages, salt: str) -> str:
        """A streamed turn of the conversation; the text of its answer."""
        raw = self._send({**self._body(messages, salt), "stream": True}, self._id).content
        text = ""
        for line in raw.splitlines():
            if line.startswith(b"data: {"):
                try:
                    choices = read(line.removeprefix(b"data: "), _Chunk).choices
                except MalformedError as error:
                    raise LegError(
                        self._router, f"{PATH} streams something else than a chat ({error})"
                    ) from error
                text += "".join(choice.delta.content or "" for choice in choices or ())
        return text

    def _ask(self, messages: Messages, salt: str, conversation: str | None) -> Answer:
        body = {**self._body(messages, salt), "logprobs": True, "top_logprobs": LIKELY}
        try:
            return read_chat(self._send(body, conversation).content)
        except MalformedError as error:
            raise LegError(self._router, f"{PATH} answers something else than a chat ({error})") from error

    def _body(self, messages: Messages, salt: str) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": ANSWER,
            "temperature": 0,
            "cache_salt": salt,
        }

    def _send(self, body: dict[str, Any], conversation: str | None) -> httpx.Response:
        named = body if conversation is None else {**body, "conversation_id": conversation}
        try:
            reply = self._http.post(self._router + PATH, json=named)
        except httpx.HTTPError as error:
            raise LegError(self._router, f"{PATH}: {error or type(error).__name__}") from error
        if reply.status_code != 200:
            raise LegError(self._router, f"{PATH} answers {reply.status_code}: {reply.text}")
        if conversation is not None:
            self._reuse.append(reply.headers.get("X-Antiphon-Reuse", ""))
        return reply


def findings(router: str, talked: Talked) -> Iterator[Finding]:
    """Pure."""
    subject = f"router {router}"
    remedy = "see which engines it went through (turn_log), and ask the doctor about those"
    yield from judged(checks.EXACT_ROUTER, subject, talked.appended, remedy)
    yield from judged(checks.EXACT_ROUTER, subject, talked.rewritten, remedy)
    second = talked.reuse[1] if len(talked.reuse) > 1 else ""
    said = dict(part.strip().partition("=")[::2] for part in second.split(";"))
    reason = next((reason for reason in _IN_VAIN if reason == said.get("reason")), None)
    if said.get("path") == "cold" and reason is not None:
        meaning = reason.meaning.partition(": ")[2] or reason.meaning
        remedy = "look the reason up in docs/router-reference.md"
        yield checks.ROUTER_REUSE.finding(subject, f"a second turn was cold, {reason}: {meaning}", remedy)


def facts(router: str, talked: Talked) -> Iterator[Fact]:
    """What the router said of each turn."""
    for number, said in enumerate(talked.reuse, 1):
        yield Fact(f"router {router}", f"turn {number} of a conversation", said)


def _user(text: str) -> Mapping[str, str]:
    return {"role": "user", "content": text}
