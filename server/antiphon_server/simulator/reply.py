"""Replies in vLLM's form, for chat and for completions, whole or as chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from antiphon_server.protocol import HANDLE_OBJECT, Handle
from antiphon_server.simulator import sse
from antiphon_server.simulator.answer import Part
from antiphon_server.simulator.ask import Ask
from antiphon_server.simulator.job import Output
from antiphon_server.simulator.tokens import token_bytes

Json = dict[str, Any]


class Reply(Protocol):
    """How one surface words its replies. Of a stream, each item is an event, or several that leave together.

    ``early``: its opening leaves before there is a token, and with it the head of the reply.
    """

    request_id: str
    early: bool

    def opening(self) -> list[bytes]:
        """What comes before the first token."""
        ...

    def events(self, index: int, output: Output) -> list[bytes]:
        """What comes of one token."""
        ...

    def closing(self, answers: Sequence[Sequence[Output]], handle: Handle | None) -> list[bytes]:
        """What comes after the last token. ``handle``: to be told by an event of its own."""
        ...

    def failed(self) -> list[bytes] | None:
        """What comes in place of tokens when KV did not arrive; None: the connection ends."""
        ...

    def whole(self, answers: Sequence[Sequence[Output]]) -> Json:
        """The reply that is not streamed."""
        ...

    def refused(self, status: int, message: str, kind: str, param: str | None) -> Json:
        """An error."""
        ...


def handle_event(handle: Handle) -> bytes:
    """The event by which our plug-in tells the handle on streams that do not have it."""
    return sse.data({"object": HANDLE_OBJECT, "kv_transfer_params": handle})


def openai_error(status: int, message: str, kind: str, param: str | None) -> Json:
    """An error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


class OpenAi:
    """What chat and completions have in common."""

    early = False
    ask: Ask

    def failed(self) -> list[bytes] | None:
        error = openai_error(500, "Internal server error", "InternalServerError", None)
        return [*self.opening(), sse.data(error), sse.DONE]

    def closing(self, answers: Sequence[Sequence[Output]], handle: Handle | None) -> list[bytes]:
        events = [sse.data(self.usage(answers))] if self.ask.usage else []
        last = sse.DONE if handle is None else handle_event(handle) + sse.DONE
        return [*events, last]

    def refused(self, status: int, message: str, kind: str, param: str | None) -> Json:
        return openai_error(status, message, kind, param)

    def opening(self) -> list[bytes]:
        return []

    def usage(self, answers: Sequence[Sequence[Output]]) -> Json:
        """The chunk after the last token."""
        raise NotImplementedError


def text_of(outputs: Sequence[Output], part: Part) -> str:
    """The text of one part of an answer."""
    raw = b"".join(token_bytes(output.token) for output in outputs if output.part is part)
    return raw.decode("utf-8", "replace")


def usage_of(ask: Ask, answers: Sequence[Sequence[Output]]) -> Json:
    """Token counts; ``cached_tokens`` is what nobody computed for this request."""
    prompt, completion = len(ask.prompt), sum(len(answer) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(ask, answers[-1][-1])},
    }


def cached_tokens(ask: Ask, output: Output) -> int:
    """What prefill says it had cached, where it says so; else what this engine had."""
    told = (ask.handle or {}).get("remote_prefill_cached_tokens")
    return told if isinstance(told, int) else output.cached


def handle_of(answers: Sequence[Sequence[Output]]) -> Handle | None:
    """The handle that came with the last token."""
    return answers[-1][-1].handle


@dataclass
class ChatReply(OpenAi):
    """``/v1/chat/completions``."""

    ask: Ask
    request_id: str
    created: int
    model: str
    _called: set[int] = field(default_factory=set)

    def opening(self) -> list[bytes]:
        chunks = []
        for index in range(self.ask.choices):
            chunk = self._chunk(index, {"role": "assistant", "content": ""}, None, None, None)
            del chunk["choices"][0]["token_ids"]
            chunk["prompt_token_ids"] = self.ask.prompt if self.ask.ids else None
            chunks.append(sse.data(chunk))
        return chunks

    def events(self, index: int, output: Output) -> list[bytes]:
        delta = self._delta(index, output)
        quiet = not self.ask.ids and self.ask.top is None and output.finish is None
        if not delta and quiet:
            return []
        logprobs = None if self.ask.top is None else {"content": [_logprob(output, self.ask.top)]}
        chunk = self._chunk(index, delta, logprobs, self._finish(output), [output.token])
        if output.finish is not None:
            chunk["choices"][0]["stop_reason"] = None
        return [sse.data(chunk)]

    def usage(self, answers: Sequence[Sequence[Output]]) -> Json:
        return {**self._base("chat.completion.chunk"), "choices": [], "usage": usage_of(self.ask, answers)}

    def whole(self, answers: Sequence[Sequence[Output]]) -> Json:
        return {
            **self._base("chat.completion"),
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage_of(self.ask, answers),
            "prompt_logprobs": None,
            "prompt_token_ids": self.ask.prompt if self.ask.ids else None,
            "kv_transfer_params": handle_of(answers),
        }

    def _choice(self, index: int, answer: Sequence[Output]) -> Json:
        calls = []
        complete = answer[-1].finish == "stop"
        if self.ask.call is not None and (complete or text_of(answer, Part.ARGUMENTS)):
            function = {"name": self.ask.call, "arguments": text_of(answer, Part.ARGUMENTS)}
            calls = [{"id": self._call_id(index), "type": "function", "function": function}]
        logprobs = None
        if self.ask.top is not None:
            logprobs = {"content": [_logprob(output, self.ask.top) for output in answer]}
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": None if self.ask.call is not None else text_of(answer, Part.CONTENT),
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "tool_calls": calls,
                "reasoning": text_of(answer, Part.REASONING) or None,
            },
            "logprobs": logprobs,
            "finish_reason": self._finish(answer[-1]),
            "stop_reason": None,
            "token_ids": [output.token for output in answer] if self.ask.ids else None,
        }

    def _delta(self, index: int, output: Output) -> Json:
        text = token_bytes(output.token).decode("utf-8", "replace")
        match output.part:
            case Part.CONTENT:
                return {"content": text}
            case Part.REASONING:
                return {"reasoning": text}
            case Part.ARGUMENTS:
                call: Json = {"index": 0, "function": {"arguments": text}}
                if index not in self._called:
                    self._called.add(index)
                    call = {
                        "id": self._call_id(index),
                        "type": "function",
                        "index": 0,
                        "function": {"name": self.ask.call, "arguments": text},
                    }
                return {"tool_calls": [call]}
            case _:
                return {}

    def _finish(self, output: Output) -> str | None:
        # vLLM says "tool_calls" for a required call and "stop" for one that the client named.
        if output.finish == "stop" and self.ask.call is not None and not self.ask.named:
            return "tool_calls"
        return output.finish

    def _call_id(self, index: int) -> str:
        return f"chatcmpl-tool-{self.request_id[-16:]}-{index}"

    def _chunk(
        self, index: int, delta: Json, logprobs: Json | None, finish: str | None, ids: list[int] | None
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        choice["token_ids"] = ids if self.ask.ids else None
        return {**self._base("chat.completion.chunk"), "choices": [choice]}

    def _base(self, kind: str) -> Json:
        return {"id": self.request_id, "object": kind, "created": self.created, "model": self.model}


@dataclass
class CompletionReply(OpenAi):
    """``/v1/completions``."""

    ask: Ask
    request_id: str
    created: int
    model: str
    _sent: list[int] = field(default_factory=list)

    def events(self, index: int, output: Output) -> list[bytes]:
        first = index not in self._sent
        self._sent.append(index)
        choice = {
            "index": index,
            "text": text_of([output], Part.CONTENT),
            "logprobs": self._logprobs([output]),
            "finish_reason": output.finish,
            "stop_reason": None,
            "prompt_token_ids": self.ask.prompt if self.ask.ids and first else None,
            "token_ids": [output.token] if self.ask.ids else None,
        }
        return [sse.data({**self._base(), "choices": [choice]})]

    def usage(self, answers: Sequence[Sequence[Output]]) -> Json:
        return {**self._base(), "choices": [], "usage": usage_of(self.ask, answers)}

    def whole(self, answers: Sequence[Sequence[Output]]) -> Json:
        choices = [
            {
                "index": index,
                "text": text_of(answer, Part.CONTENT),
                "logprobs": self._logprobs(answer),
                "finish_reason": answer[-1].finish,
                "stop_reason": None,
                "token_ids": [output.token for output in answer] if self.ask.ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": self.ask.prompt if self.ask.ids else None,
            }
            for index, answer in enumerate(answers)
        ]
        return {
            **self._base(),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage_of(self.ask, answers),
            "kv_transfer_params": handle_of(answers),
        }

    def _logprobs(self, answer: Sequence[Output]) -> Json | None:
        if self.ask.top is None:
            return None
        tokens = [token_bytes(output.token).decode("utf-8", "replace") for output in answer]
        values = [output.logprob for output in answer]
        return {
            "text_offset": [sum(map(len, tokens[:position])) for position in range(len(tokens))],
            "token_logprobs": values,
            "tokens": tokens,
            "top_logprobs": [{token: value} for token, value in zip(tokens, values, strict=True)],
        }

    def _base(self) -> Json:
        return {
            "id": self.request_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }


def _logprob(output: Output, top: int) -> Json:
    raw = token_bytes(output.token)
    entry = {"token": raw.decode("utf-8", "replace"), "logprob": output.logprob, "bytes": list(raw)}
    return {**entry, "top_logprobs": [entry] if top else []}
