"""Which conversation code inside a graph belongs to, read from its ``RunnableConfig``. Pure.

=====================================  ======================================================
where the code runs                    conversation, for thread ``T``
=====================================  ======================================================
a node, in whichever superstep         ``T``
a node started by the n-th ``Send``    ``T/<node>#<n>``
a ``@task``                            that of its caller
a graph inside a node, stateless       ``T/<node>:<task id>``, new for every invocation
the same, with ``checkpointer=True``   ``T/<node>``, the same in all invocations
the second graph that a node invokes   ``T/<node>:<task id>|1``
a model call beside the conversation   ``<id>/<source>``, such as ``T/summarization``
=====================================  ======================================================

A namespace names the tasks from the root graph down to the running one, whose own task id is new in every
superstep: it is left out. Tasks are numbered in the order in which they are called, so that the steps of a
loop would each be another conversation: they belong to their caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon import Conversation, ConversationError
from antiphon._contacts import Contacts

_PUSH = "__pregel_push"
"""First of the path of tasks that code started (``Send``, ``@task``), not an edge."""

_contacts = Contacts()
"""Shared by all threads, for each model call makes its conversation anew."""


def conversation_of(config: Mapping[str, Any]) -> Conversation | None:
    """The conversation of a ``RunnableConfig``; None without a thread id.

    ``configurable.conversation_id`` names it, where it is given. Otherwise it is a thread, or a branch of it.
    A thread comes back: nothing ends it but ``conversation_of(config).close()``, which ends its branches too.

    Raises:
        ConversationError: not a config.
    """
    if not isinstance(config, Mapping):
        raise ConversationError(
            f"{config!r} is no RunnableConfig: pass {{'configurable': {{'thread_id': ...}}}}, as to invoke()"
        )
    return _conversation(config, sends=True)


def conversation_of_graph(config: Mapping[str, Any]) -> Conversation | None:
    """The same, of the graph that the code runs in: a ``Send`` starts no branch of it."""
    return _conversation(config, sends=False)


def beside(conversation: Conversation, config: Mapping[str, Any]) -> Conversation | None:
    """The child for a call of LangChain's own: a summary, a choice of tools; None for all others."""
    source = _metadata(config).get("lc_source")
    return conversation.child(str(source), keep=True) if source else None


def _conversation(config: Mapping[str, Any], *, sends: bool) -> Conversation | None:
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    branch: list[str] = []
    identity = configurable.get("conversation_id")
    if identity in (None, ""):
        identity = configurable.get("thread_id")
        path = _metadata(config).get("langgraph_path") or ()
        levels, send = _place(configurable.get("checkpoint_ns") or "", path)
        branch = [*levels, send] if send and sends else levels
    if identity in (None, ""):
        return None
    conversation = Conversation(str(identity), None, True, _contacts)
    for name in branch:
        conversation = conversation.child(name, keep=True)
    return beside(conversation, config) or conversation


def _metadata(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("metadata") or {}


def _place(namespace: str, path: Sequence[Any]) -> tuple[list[str], str]:
    """Where a task runs: names from the thread down to its graph, and its own if a ``Send`` started it.

    ``path`` is ``(pull, node)``, ``(push, index, False)`` of a ``Send``, or ``(push, path of the caller,
    index, True)`` of a ``@task``.
    """
    levels: list[str] = []
    for segment in filter(None, namespace.split("|")):
        if segment.isdigit() and levels:  # counts the graphs that one task invokes
            levels[-1] += f"|{segment}"
        else:
            levels.append(segment)
    while path and path[-1] is True:
        del levels[-1:]
        path = path[1]
    *levels, own = levels or [""]
    pushed = own and path and path[0] == _PUSH
    return levels, f"{own.partition(':')[0]}#{path[1]}" if pushed else ""
