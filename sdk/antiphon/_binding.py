"""What a client was told when it was wrapped or hooked, and what that means for one of its requests. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon._calls import api_of_model_call, is_vendor
from antiphon._conversation import Conversation, current
from antiphon._wire import Wire, wire_of


@dataclass(frozen=True, slots=True)
class Call:
    """A model call that belongs to a conversation. ``api``: base URL of its server. ``ends``: tell that
    server when the conversation ends."""

    conversation: Conversation
    wire: Wire
    api: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Binding:
    """None leaves it to the code that surrounds each call, and to the call's host."""

    conversation: Conversation | None = None
    wire: Wire | None = None

    def rebound(self, conversation: Conversation | None, wire: Wire | str | None) -> Binding:
        """The same, but for what is given.

        Raises:
            WireError: no preset has this name.
        """
        return Binding(conversation or self.conversation, self.wire if wire is None else wire_of(wire))

    def call(self, method: str, url: str, host: str) -> Call | None:
        """What the request is to us; None: leave it as it is.

        Other requests than model calls are left, those outside any conversation, and, unless a wire was
        given, those to public vendors; these are never told of an end: ``DELETE /conversations`` is
        something else there.
        """
        api = api_of_model_call(method, url)
        vendor = is_vendor(host)
        if api is None or (vendor and self.wire is None):
            return None
        conversation = self.conversation or current()
        if conversation is None:
            return None
        wire = self.wire or Wire.default
        return Call(conversation, wire, api, ends=wire.ends and not vendor)
