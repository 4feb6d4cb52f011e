"""What must hold of an agent's model calls, so that a router can reuse their KV."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from antiphon._comparison import divergence_of
from antiphon._conversation import Conversation
from antiphon._identity import wire_id
from antiphon.testing._history import difference, extended, history_field, history_of, setting_of
from antiphon.testing._recorded import Recorded
from antiphon.testing._router import FakeRouter
from antiphon.testing._sent import recorded

Call = tuple[str, Recorded]
"""A call and what it is called in messages."""


def assert_same_conversation(calls: Iterable[Any]) -> str:
    """All model calls belong to one conversation; returns its id.

    ``calls``, here and below: what a :class:`FakeRouter` recorded; requests or responses of httpx or httpx2;
    respx' ``route.calls``; or pairs of headers and body. Other requests among them are left out.

    Raises:
        AssertionError: a call names none or another one, or there are no calls.
    """
    __tracebackhide__ = True
    (origin, first), *_ = found = _model_calls(calls)
    for name, call in found:
        if call.conversation is None:
            raise AssertionError(
                f"{name} ({call}) names no conversation, neither in its body nor in a header: wrap or hook "
                "its client, and call inside `with antiphon.conversation()`; into threads, carry() it"
            )
        if call.conversation != first.conversation:
            raise AssertionError(
                f"{name} ({call}) belongs to conversation {call.conversation!r}, and {origin} to "
                f"{first.conversation!r}: open one conversation around both, or look at the calls of each "
                "by itself, as FakeRouter.conversations() gives them, where they are of two agents"
            )
    return str(first.conversation)


def assert_distinct_turns(calls: Iterable[Any]) -> None:
    """Each model call has a turn id, which only its own retries share: calls after one that failed, or
    that say so in ``x-stainless-retry-count``.

    Raises:
        AssertionError: a call has none, or that of another one; or there are no calls.
    """
    __tracebackhide__ = True
    seen: dict[str, Call] = {}
    for name, call in _model_calls(calls):
        if call.turn is None:
            raise AssertionError(
                f"{name} ({call}) has no X-Turn-ID: a router takes each of its retries for a new turn"
            )
        before, first = seen.get(call.turn, (name, call))
        failed = first.status is not None and first.status >= 400
        retries = failed or call.headers.get("x-stainless-retry-count", "0") != "0"
        if before != name and not retries:
            raise AssertionError(
                f"{name} ({call}) has the turn id of {before}, {call.turn!r}, and is no retry of it: make a "
                "new one for each call, as stamp() does by itself"
            )
        seen[call.turn] = name, call


def assert_history_kept(calls: Iterable[Any]) -> None:
    """Each model call repeats the last one of its conversation, adds the assistant's answer as it came, and
    goes on from there; tools and instructions stay. Then the whole KV of the last turn is of use.

    A null field and a missing one are the same. Where the answer is not known (requests without responses),
    the assistant's message must be there, whatever it says. Calls that failed and calls that name a
    ``previous_response_id`` are left out.

    Raises:
        AssertionError: it names the call, the field and the character where the histories part; or there are
            no calls.
    """
    __tracebackhide__ = True
    last: dict[str | None, Call] = {}
    for name, call in _model_calls(calls):
        before = last.pop(call.conversation, None)
        if call.fields.get("previous_response_id"):
            continue
        failed = call.status is not None and call.status >= 400
        if before is not None and not (call.turn and call.turn == before[1].turn):
            parted = _parted(before, (name, call))
            if parted is not None:
                raise AssertionError(
                    f"the history of conversation {call.conversation!r} was not kept: {parted}. "
                    f"{_remedy(before[1], call)}"
                )
        if not failed:
            last[call.conversation] = name, call
        elif before is not None:
            last[call.conversation] = before


def assert_ended(
    router: FakeRouter | Iterable[Any], conversation: Conversation | str, *, within: float = 5.0
) -> None:
    """A client ended the conversation. ``router``: or the requests that were sent. ``within``: seconds to
    wait for that, for under an event loop a thread does it.

    Raises:
        AssertionError: it did not.
    """
    __tracebackhide__ = True
    sought = conversation.id if isinstance(conversation, Conversation) else wire_id(conversation)

    def ended(requests: Iterable[Recorded]) -> list[str | None]:
        return [each.conversation for each in requests if each.method == "DELETE" or each.final]

    if isinstance(router, FakeRouter):
        router.wait_until(lambda: sought in ended(router.requests), within)
        known = ended(router.requests)
    else:
        known = ended(map(recorded, router))
    if sought not in known:
        raise AssertionError(
            f"conversation {sought!r} was not ended; these were: {known}. Leave its with block (the last "
            "one, where several are open) or close() it; keep=True leaves it open, and only routers that it "
            "was sent to are told"
        )


def _model_calls(calls: Iterable[Any]) -> list[Call]:
    found = [(f"calls[{place}]", recorded(call)) for place, call in enumerate(calls)]
    kept = [(name, call) for name, call in found if call.is_call]
    if not kept:
        raise AssertionError(f"there is no model call among the {len(found)} requests given")
    return kept


def _parted(before: Call, after: Call) -> str | None:
    """Where the second call ceases to extend the first, in words."""
    (origin, first), (name, call) = before, after
    changed = difference(setting_of(first), setting_of(call), name)
    if changed is not None:
        return changed
    old, new, where = history_of(first), history_of(call), f"{name}.{history_field(call)}"
    parted = difference(old, new[: len(old)], where)
    if parted is not None or isinstance(old, str):
        expected = extended(old, first.answer or "")
        return parted or difference(expected, new[: len(expected)], where)
    if first.answer is None:
        place = len(old)
        replied = len(new) > place and _is_assistants(new[place])
        return None if replied else f"{where}[{place}] is not the assistant's answer to {origin}"
    for place, said in enumerate(first.answer, len(old)):
        parted = difference([said], list(new[place : place + 1]), "")
        if parted is not None:
            return f"{where}[{place}]{parted.removeprefix('[0]')} (the answer to {origin})"
    return None


def _remedy(before: Recorded, after: Recorded) -> str:
    """What usually causes such a difference, and what helps; a general word where that does not show."""
    answer = before.answer
    reply = {"choices": [{"text": answer}]} if isinstance(answer, str) else {"output": answer}
    bodies = (json.dumps(body).encode() for body in (before.body, after.body, reply))
    cause = divergence_of(*bodies)
    return str(cause) if cause else "Send back what came, as it came: antiphon.Turn does."


def _is_assistants(said: Any) -> bool:
    """Of a message, or of an item of the Responses API."""
    role, kind = said.get("role", "assistant"), said.get("type", "")
    return role == "assistant" and not kind.endswith("_output")
