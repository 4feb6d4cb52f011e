"""The history of an agent's loop, resubmitted exactly as it came.

The KV of a turn is reusable as far as the next prompt repeats it token for token. A history that was parsed
and written again (arguments re-serialised, reasoning dropped, ``""`` made None) ends that prefix at the first
letter that differs. A turn keeps what came and gives it back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from antiphon._assembly import Assembly, Message, message_of
from antiphon._conversation import Conversation
from antiphon._errors import TurnError
from antiphon._identity import new_id
from antiphon._plain import get, plain
from antiphon._stamp import Stamp, stamp
from antiphon._tool_call import ToolCall, calls_of, content_of
from antiphon._wire import Wire

Chunk = TypeVar("Chunk")


@dataclass(slots=True)
class _Entry:
    """A message and, where it asks for calls, their results as they come in."""

    message: Message
    calls: tuple[ToolCall, ...] = ()
    results: list[Message | None] = field(default_factory=list)

    def open(self) -> tuple[ToolCall, ...]:
        pairs = zip(self.calls, self.results, strict=True)
        return tuple(call for call, result in pairs if result is None)


class Turn:
    """The messages of one agent loop in a conversation. For chat completions; not for the Responses API,
    whose items are others.

    >>> turn = conversation.turn([{"role": "user", "content": "..."}])  # doctest: +SKIP
    >>> turn.add_reply(client.chat.completions.create(messages=turn.messages, ...))  # doctest: +SKIP
    >>> for call in turn.calls:  # doctest: +SKIP
    ...     turn.add_tool_result(call.id, run(call.name, call.arguments))

    What is added is copied, and so is what is handed out: nothing changes later. A turn pickles and
    deep-copies at any moment. Results may be added by several threads, all else by one at a time. To go on
    with a summarised or shortened history, make another turn of it: ``conversation.turn(shorter)``.

    ``messages``: the history so far, added one by one.

    Raises:
        TurnError: see :meth:`add`.
    """

    __slots__ = ("_entries", "_id", "_replied", "conversation")

    def __init__(self, conversation: Conversation, messages: Iterable[Any] = ()) -> None:
        self.conversation = conversation
        self._entries: list[_Entry] = []
        self._id = new_id()
        self._replied = False  # and nothing was added since
        for message in messages:
            self.add(message)

    @property
    def id(self) -> str:
        """Id of the next model call, as :meth:`stamp` sends it: the same on each try, another one once the
        reply is added."""
        return self._id

    @property
    def messages(self) -> list[Any]:
        """The messages to send, each a dict: as they came, results in the order of their calls.

        Raises:
            TurnError: a call has no result yet.
        """
        self._expect_no_calls()
        return deepcopy([message for entry in self._entries for message in (entry.message, *entry.results)])

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that have no result yet, in the model's order."""
        return self._asking().open()

    def add(self, message: Any) -> None:
        """Add a message, a dict or a model. The assistant's, say of a stored history, opens its calls; a
        tool's is the result of one.

        Raises:
            TurnError: not a message; an assistant's while a call is open; a result of no open call.
        """
        role = get(message, "role")
        if not isinstance(role, str):
            raise TurnError(f"{message!r} is no message: pass a dict with a role, or a model of one")
        if role == "assistant":
            self._expect_no_calls()
            self._append(message_of(message))
        elif role == "tool":
            copied = plain(message)
            entry, place = self._place_of(copied.get("tool_call_id"))
            entry.results[place] = copied
        else:
            self._append(plain(message))
        self._replied = False

    def add_user(self, content: str | Sequence[Any]) -> None:
        """Add a user's message. ``content``: text or content parts."""
        self.add({"role": "user", "content": content})

    def add_reply(self, reply: Any, *, choice: int = 0) -> None:
        """Add the model's reply: a chat completion or its message, as a model or as JSON, also what
        ``parse()`` made of it. ``choice``: index of the one that counts, where there are several.

        Raises:
            TurnError: not a reply; a call is open; nothing was added since the last reply.
        """
        self._expect_reply()
        self._append_reply(message_of(reply, choice))

    def add_tool_result(self, call_id: str, result: Any) -> None:
        """Add a call's result; the order does not matter. ``result``: text or content parts, sent as they
        are, or plain data, which becomes compact JSON here and now.

        Raises:
            TurnError: no open call has this id; no JSON can be made of the result.
        """
        entry, place = self._place_of(call_id)
        content = content_of(entry.calls[place], result)
        entry.results[place] = {"role": "tool", "tool_call_id": call_id, "content": content}
        self._replied = False

    def read(self, stream: Iterable[Chunk], *, choice: int = 0) -> Generator[Chunk, None, None]:
        """Hand on a reply's chunks as they come, and add the reply once its ``finish_reason`` has come.

        A stream that breaks or is left before adds nothing, so that the call can be made again. Chunks are
        models or JSON; events of openai's ``stream()`` will do.

        Raises:
            TurnError: as :meth:`add_reply`; the stream ended without a ``finish_reason``.
        """
        with self._reading(choice) as take:
            for chunk in stream:
                take(chunk)
                yield chunk

    async def aread(self, stream: AsyncIterable[Chunk], *, choice: int = 0) -> AsyncGenerator[Chunk, None]:
        """:meth:`read` for async code."""
        with self._reading(choice) as take:
            async for chunk in stream:
                take(chunk)
                yield chunk

    def stamp(
        self, *, wire: Wire | str = Wire.default, headers: Iterable[str] = (), body: Iterable[str] = ()
    ) -> Stamp:
        """What the next model call must carry, where no adapter stamps it: :func:`antiphon.stamp` says how.

        >>> stamp = turn.stamp()  # doctest: +SKIP
        >>> json = {"model": "m", "messages": turn.messages, **stamp.body}  # doctest: +SKIP
        >>> reply = http.post(url, json=json, headers=stamp.headers).json()  # doctest: +SKIP
        """
        return stamp(self.conversation, turn=self._id, wire=wire, headers=headers, body=body)

    @contextmanager
    def _reading(self, choice: int) -> Iterator[Callable[[Any], None]]:
        """What takes a stream's chunks; a stream that breaks leaves the turn as it was."""
        self._expect_reply()
        assembly, before = Assembly(choice), self._id
        added: _Entry | None = None

        def take(chunk: Any) -> None:
            nonlocal added
            if assembly.take(chunk):
                self._expect_reply()
                added = self._append_reply(assembly.message())

        try:
            yield take
        except GeneratorExit:  # left early, which is no failure
            raise
        except BaseException:
            if added and added is self._entries[-1] and not any(added.results):
                self._entries.pop()
                self._id, self._replied = before, False
            raise
        if not assembly.finished:
            raise TurnError("the stream ended without a finish_reason, so nothing was added: call again")

    def _append(self, message: Message) -> _Entry:
        calls = calls_of(message) if message["role"] == "assistant" else ()
        self._entries.append(_Entry(message, calls, [None] * len(calls)))
        return self._entries[-1]

    def _append_reply(self, message: Message) -> _Entry:
        self._id, self._replied = new_id(), True
        return self._append(message)

    def _asking(self) -> _Entry:
        """The last message that asked for calls."""
        return next((entry for entry in reversed(self._entries) if entry.calls), _Entry({}))

    def _place_of(self, call_id: object) -> tuple[_Entry, int]:
        """Where the result of an open call goes. Where a model used an id twice, the first open one's."""
        asking = self._asking()
        named = [place for place, call in enumerate(asking.calls) if call.id == call_id]
        for place in named:
            if asking.results[place] is None:
                return asking, place
        if named:
            raise TurnError(f"{asking.calls[named[0]]} has its result already: add one for each call")
        known = ", ".join(map(str, self.calls)) or "none"
        raise TurnError(f"there is no call {call_id!r} to answer; without a result yet: {known}")

    def _expect_no_calls(self) -> None:
        if self.calls:
            missing = ", ".join(map(str, self.calls))
            raise TurnError(f"no result yet of {missing}: add_tool_result() for each of them first")

    def _expect_reply(self) -> None:
        self._expect_no_calls()
        if self._replied:
            raise TurnError(
                "nothing was added since the last reply: add each reply once, then what follows it"
            )
