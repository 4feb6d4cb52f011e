"""The requests that are measured: a chat whose body has a wanted size."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from antiphon_server.bench.overhead.replies import MODEL
from antiphon_server.text import cut

PATH = "/v1/chat/completions"
BYTES_A_TOKEN = 4
_MESSAGE = 2000
"""Characters of a message at most: what a tool returns, or a model writes."""


@dataclass(frozen=True, slots=True)
class Body:
    """``size``: bytes wanted; the body has nearly as many. ``chunks``: tokens of the answer."""

    size: int
    stream: bool
    chunks: int = 16

    def encoded(self) -> bytes:
        """As JSON: a conversation of as many messages as it takes."""
        asked = {
            "model": MODEL,
            "user": f"tokens={self.size // BYTES_A_TOKEN}",
            "stream": self.stream,
            "max_tokens": self.chunks,
        }
        messages: list[dict[str, str]] = [{"role": "system", "content": "You are a careful agent."}]
        room = self.size - len(msgspec.json.encode({**asked, "messages": messages}))
        text = iter(cut(1, max(0, room)).split("\n"))
        content: list[str] = []
        for line in text:
            content.append(line)
            if sum(map(len, content)) >= _MESSAGE:
                messages.append(_said(len(messages), content))
                content = []
        messages.append(_said(len(messages), content))
        return _cut(asked, messages, self.size)


def _said(place: int, lines: list[str]) -> dict[str, str]:
    return {"role": "user" if place % 2 else "assistant", "content": "\n".join(lines)}


def _cut(asked: dict[str, object], messages: list[dict[str, str]], size: int) -> bytes:
    """Keys and escapes have taken it above the size: messages leave from the end, but for a last one."""
    lengths = [len(msgspec.json.encode(message)) + 1 for message in messages]
    over = len(msgspec.json.encode({**asked, "messages": messages})) - size
    while over > 0 and len(messages) > 2:
        messages.pop(-2)
        over -= lengths.pop(-2)
    last = messages[-1]
    if over > 0:
        last["content"] = last["content"][: max(1, len(last["content"]) - over)]
    messages[-1] = {"role": "user", "content": last["content"]}
    return msgspec.json.encode({**asked, "messages": messages})


def head(authority: str, length: int, conversation: str | None = None) -> bytes:
    """Of an HTTP request. ``conversation``: named in a header, so that bodies are shared."""
    named = f"X-Conversation-ID: {conversation}\r\n" if conversation is not None else ""
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n{named}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()
