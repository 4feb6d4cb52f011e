"""The conversation: a value with an id, and a block of code that it surrounds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from antiphon import _ending, _scope
from antiphon._ambient import ambient
from antiphon._contacts import Contacts
from antiphon._errors import ConversationError
from antiphon._identity import new_id, wire_id
from antiphon._router import Router
from antiphon._statistics import Statistics, registry
from antiphon._steps import asteps, steps

if TYPE_CHECKING:
    from antiphon._turn import Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A sequence of model calls whose prompts grow from one another.

    ``id``: 1..128 printable ASCII characters (others are hashed). ``parent``: id of the conversation that
    started this one. ``keep``: leaving a ``with`` block does not end it, for a later turn will come, say in
    the next web request.

    Equal by id and parent. A pickled copy does not carry which routers were spoken to, nor their credentials,
    so only the original ends what it began.

    Raises:
        ConversationError: an id is empty or not a string.
    """

    id: str
    parent: str | None = None
    keep: bool = field(default=False, compare=False)
    _contacts: Contacts = field(default_factory=Contacts, repr=False, compare=False)
    _ancestors: tuple[str, ...] = field(default=(), repr=False, compare=False)
    _scopes: list[_scope.Scope] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", wire_id(self.id))
        if self.parent is not None:
            object.__setattr__(self, "parent", wire_id(self.parent))

    def child(self, name: str, *, keep: bool = False) -> Conversation:
        """The conversation of a sub-agent: ``<id>/<name>``. Ends with its parent, if not before."""
        if not isinstance(name, str) or not name:
            raise ConversationError(f"child {name!r} of conversation {self.id!r} has no name: pass a string")
        return self._descend(f"{self.id}/{name}", keep)

    def _descend(self, identity: str, keep: bool) -> Conversation:
        return Conversation(identity, self.id, keep, self._contacts, (*self._ancestors, self.id))

    def turn(self, messages: Iterable[Any] = ()) -> Turn:
        """The messages of an agent's loop, to be resubmitted as they came. ``messages``: the history so far.

        Raises:
            TurnError: a message is none, or does not fit those before it.
        """
        from antiphon._turn import Turn  # it stamps, and so knows conversations

        return Turn(self, messages)

    @overload
    def steps(self, iterable: AsyncIterable[T]) -> AsyncGenerator[T, None]: ...
    @overload
    def steps(self, iterable: Iterable[T]) -> Generator[T, None, None]: ...
    def steps(self, iterable: Any) -> Any:
        """What a generator yields, each of its steps run in this conversation and nothing else.

        A ``with`` around a ``yield`` leaks the conversation into the code that consumes the generator; this
        does not. Closing it closes the generator, from any task or thread. The conversation stays open.

        >>> for event in conversation.steps(agent.stream("hello")):  # doctest: +SKIP
        ...     show(event)
        """
        return (asteps if isinstance(iterable, AsyncIterable) else steps)(self, iterable)

    @property
    def statistics(self) -> Statistics:
        """What its turns have reused, as far as this process saw them; also after its end."""
        return registry.statistics(self.id)

    def seen_by(self, router: Router) -> None:
        """Note that a router was told of this conversation; adapters call it. Ending tells each of them."""
        self._contacts.note((*self._ancestors, self.id), router)

    def close(self) -> None:
        """End the conversation on every router that saw it, so that its KV is freed.

        Never raises: what fails is logged. Under a running event loop a thread does the work.
        """
        _ending.end(self._contacts.take(self.id))

    async def aclose(self) -> None:
        """:meth:`close` for async code."""
        await _ending.aend(self._contacts.take(self.id))

    def __enter__(self) -> Conversation:
        self._scopes.append(_scope.enter(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave():
            self.close()

    async def __aenter__(self) -> Conversation:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave():
            await self.aclose()

    def _leave(self) -> bool:
        """Leave one block; True when it was the last open one and the conversation shall end."""
        scope = _scope.innermost()
        while scope is not None and scope not in self._scopes:
            scope = scope.outer
        scope = scope or self._scopes[-1]
        self._scopes.remove(scope)
        _scope.leave(scope)
        return not self._scopes and not self.keep

    def __copy__(self) -> Conversation:
        return self

    def __deepcopy__(self, memo: object) -> Conversation:
        return self

    def __reduce__(self) -> tuple[type[Conversation], tuple[str, str | None, bool]]:
        return Conversation, (self.id, self.parent, self.keep)


def conversation(
    id: str | None = None,  # noqa: A002
    parent: Conversation | str | None = None,
    *,
    keep: bool = False,
) -> Conversation:
    """A conversation, to enter with ``with`` or ``async with``, or to hand to an adapter.

    ``id``: None makes a random one. ``parent``: the conversation that started it, or that one's id. ``keep``:
    leaving the block leaves the KV where it is, for a later turn.

    Raises:
        ConversationError: an id is empty or not a string.
    """
    identity = new_id() if id is None else id
    if isinstance(parent, Conversation):
        return parent._descend(identity, keep)
    return Conversation(identity, parent, keep)


def current() -> Conversation | None:
    """The conversation that the running code belongs to: of the innermost block around it, else the one that
    a framework knows of, else None. What a framework calls beside the conversation, such as for a summary, is
    a child of it."""
    scope = _scope.innermost()
    return ambient(scope.conversation if scope else None)
