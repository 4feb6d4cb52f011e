"""LangChain's ChatOpenAI, with its calls stamped and its replies resubmitted as they came."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import openai
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import Field, InstanceOf, PrivateAttr, model_validator

from antiphon import Conversation, Wire
from antiphon._assembly import assembled
from antiphon._calls import is_vendor
from antiphon_langgraph._clients import clients_of, wrap_clients
from antiphon_langgraph._verbatim import KEPT, Message, keep, restore

_log = logging.getLogger("antiphon")


@dataclass(slots=True)
class _Call:
    """One model call under way. ``origin``: who answers it; None where its reply is not kept, or no longer.

    ``deltas``, ``chunks``: of its stream so far, as they came and as LangChain has them.
    """

    origin: str | None = None
    deltas: list[Mapping[str, Any]] = field(default_factory=list)
    chunks: list[BaseMessage] = field(default_factory=list)


class VerbatimChatOpenAI(ChatOpenAI):
    """A ``ChatOpenAI`` for routers of ours: it takes the same arguments, and two more.

    Every call carries the conversation that it belongs to. ``conversation``, ``wire``: as in
    :func:`antiphon_openai.wrap`; by default the conversation is the one that surrounds the call.

    A reply that is resubmitted in a history goes back as it came: argument text of tool calls, reasoning,
    fields that LangChain does not know. What LangChain would change of it is kept in the message's
    ``additional_kwargs``. A message that somebody has edited since, or that came from another model or
    server, goes as ``ChatOpenAI`` sends it; so do all in the Responses API, and towards public vendors, who
    may refuse what they do not know.
    """

    conversation: InstanceOf[Conversation] | None = Field(default=None, exclude=True)
    wire: InstanceOf[Wire] | str | None = Field(default=None, exclude=True)
    _call: _Call | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _wrap_clients(self) -> Self:
        wrap_clients(self, conversation=self.conversation, wire=self.wire)
        return self

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        return ["antiphon_langgraph"]

    # One call is followed by a copy of the model: LangChain hands nothing of its own from a stream's chunk to
    # the next, and a context variable would leak out of a generator.

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return super(VerbatimChatOpenAI, self._following())._generate(*args, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return await super(VerbatimChatOpenAI, self._following())._agenerate(*args, **kwargs)

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        return super(VerbatimChatOpenAI, self._following())._stream(*args, **kwargs)

    def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        return super(VerbatimChatOpenAI, self._following())._astream(*args, **kwargs)

    def _following(self) -> Self:
        follower = self.model_copy()
        follower._call = _Call()
        return follower

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        payload = super()._get_request_payload(input_, stop=stop, **kwargs)
        origin = self._origin(payload)
        if self._call is not None:
            self._call.origin = origin
        if origin is not None:
            messages: list[Message] = payload["messages"]
            given = self._convert_input(input_).to_messages()
            for place, (message, default) in enumerate(zip(given, messages, strict=False)):
                if isinstance(message, AIMessage):
                    messages[place] = restore(default, message.additional_kwargs.get(KEPT), origin)
        return payload

    def _origin(self, payload: Mapping[str, Any]) -> str | None:
        """Model and server of a call; None where nothing is to be verbatim."""
        server = str(getattr(clients_of(self)[0] or self.root_async_client, "base_url", ""))
        if "messages" not in payload or is_vendor(urlsplit(server).hostname or ""):
            return None
        return f"{server} {payload['model']}"

    def _create_chat_result(
        self, response: dict[str, Any] | openai.BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        if self._call is not None and (origin := self._call.origin) is not None:
            for generation, raw in zip(result.generations, _messages(response), strict=False):
                self._keep(generation.message, origin, [raw], [generation.message])
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        found = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if found is not None and self._call is not None and (origin := self._call.origin) is not None:
            for choice in (chunk.get("choices") or chunk.get("chunk", {}).get("choices") or ())[:1]:
                self._follow(self._call, origin, choice, found.message)
        return found

    def _follow(self, call: _Call, origin: str, choice: Mapping[str, Any], chunk: BaseMessage) -> None:
        """Add a chunk of a stream to its call. The one that ends the message takes what is kept of it, and
        at once, for callbacks see it before it comes by here again."""
        call.deltas.append(choice["delta"])
        call.chunks.append(chunk)
        several = bool(choice.get("index"))  # answers, mixed in one stream
        if several or choice.get("finish_reason"):
            call.origin = None
        if not several and choice.get("finish_reason"):
            self._keep(chunk, origin, call.deltas, call.chunks)

    def _keep(
        self, bearer: BaseMessage, origin: str, parts: Sequence[Mapping[str, Any]], messages: Sequence[Any]
    ) -> None:
        """Keep in ``bearer`` what ``messages`` together lost of ``parts``. No reply fails over it."""
        try:
            message = messages[0] + messages[1:] if messages[1:] else messages[0]
            (default,) = super()._get_request_payload([message])["messages"]
            kept = keep(assembled(parts), default, origin)
        except Exception as error:
            _log.debug("a reply will not be resubmitted verbatim: %r", error)
            return
        if kept is not None:
            bearer.additional_kwargs[KEPT] = kept


def _messages(response: dict[str, Any] | openai.BaseModel) -> list[Message]:
    """The choices' messages with the fields that came."""
    if not isinstance(response, dict):
        parsed = {"choices": {"__all__": {"message": {"parsed"}}}}
        response = response.model_dump(exclude=parsed, exclude_unset=True, warnings=False)
    return [choice["message"] for choice in response["choices"]]


def chat_openai(**kwargs: Any) -> VerbatimChatOpenAI:
    """A :class:`VerbatimChatOpenAI` that speaks chat completions, whatever the model's name.

    ``kwargs``: those of ``ChatOpenAI``, and ``conversation`` and ``wire``.
    """
    return VerbatimChatOpenAI(**{"use_responses_api": False, **kwargs})
