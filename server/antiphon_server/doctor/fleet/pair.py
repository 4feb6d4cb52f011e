"""The two legs of a turn, sent to one prefill and one decode engine as the router sends them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx
import msgspec

from antiphon_server import counters
from antiphon_server.counters import Counters
from antiphon_server.doctor.fleet.answer import Answer, Form, MalformedError, TokenId, read, read_completion
from antiphon_server.doctor.fleet.client import Patience, client
from antiphon_server.doctor.fleet.facts import UNREADABLE
from antiphon_server.protocol import (
    HANDLE_OBJECT,
    LEASES_PATH,
    PROTOCOL,
    PROTOCOL_HEADER,
    Handle,
    LeaseReply,
    Seal,
)
from antiphon_server.router.legs.ask import Ask, read_ask
from antiphon_server.router.legs.bodies import append_body, decode_body, prefill_body, read_filled

PATH = "/v1/completions"
LIKELY = 5
"""Likeliest tokens asked for; vLLM gives no more on this surface unless told to."""


FEWEST = 64
"""Characters of a text for each of its tokens at most: they have some four, and in any case fewer."""


class _Tokens(msgspec.Struct):
    tokens: list[TokenId]


class _Handed(msgspec.Struct):
    kv_transfer_params: dict[str, Any] | None = None


class LegError(Exception):
    """A leg was not answered as it should be. ``url``: of the engine."""

    def __init__(self, url: str, said: str) -> None:
        super().__init__(said)
        self.url = url


class Pair:
    """Close it: that releases what its legs left on the engines. Prompts are token ids, so that a next turn
    extends the last one exactly, whatever the tokenizer. ``stock``: an engine has no leases to release.
    ``hosts``: where each engine's handles say that its KV is. ``spent``: tokens of all prompts so far.
    """

    def __init__(
        self,
        prefill: str,
        decode: str,
        model: str,
        *,
        key: str | None,
        stock: bool,
        patience: Patience | None = None,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.stock = stock
        self.hosts: dict[str, str] = {}
        self.spent = 0
        self._model = model
        headers = {PROTOCOL_HEADER: str(PROTOCOL), **({"Authorization": f"Bearer {key}"} if key else {})}
        self._headers = headers
        self._patience = patience or Patience()
        self._http = client(self._patience.leg, left=self._patience.left, headers=headers)
        self._left: list[tuple[str, str]] = []

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._release_all()
        finally:
            self._http.close()

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.prefill} and {self.decode}"

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without those that a tokenizer adds around it."""
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        raw = self._send(self.decode, "/tokenize", json.dumps(asked).encode())
        found = self._read(self.decode, "/tokenize", raw, _Tokens).tokens
        if len(found) < len(text) // FEWEST:  # who wants so many of them would ask for ever longer texts
            said = f"/tokenize makes {len(found)} tokens of {len(text)} characters"
            raise LegError(self.decode, said)
        return found

    def cold(self, prompt: Sequence[int], salt: str, tokens: int) -> tuple[Answer, Handle]:
        """A first turn: prefill computes, decode pulls and answers."""
        return self.turn(prompt, salt, tokens, None)[:2]

    def turn(
        self, prompt: Sequence[int], salt: str, tokens: int, handle: Handle | None
    ) -> tuple[Answer, Handle, Seal | None]:
        """A turn through both engines; its answer, decode's handle, and what prefill says it did with
        ``handle``.

        Raises:
            LegError: a leg was refused, or left no handle.
        """
        ask = self._ask(prompt, salt, tokens)
        raw = self._send(self.prefill, PATH, prefill_body(ask, handle))
        self._read(self.prefill, PATH, raw, dict[str, Any])  # the router believes that engines mean well
        filled = read_filled(raw)
        if filled is None:
            raise LegError(self.prefill, "its prefill leg returns no handle (kv_transfer_params)")
        if isinstance(filled.remote_host, str):
            self.hosts[self.prefill] = filled.remote_host
        if filled.lease is not None:  # until decode has read it
            self._left.append((self.prefill, filled.lease))
        raw = self._send(self.decode, PATH, decode_body(ask, filled))
        self._left = [left for left in self._left if left != (self.prefill, filled.lease)]
        handle = self._handle(raw)
        return self._answer(raw), handle, filled.seal

    def straight(self, prompt: Sequence[int], salt: str, tokens: int) -> tuple[Answer, Handle]:
        """A turn on decode alone that leaves a handle.

        Raises:
            LegError: see :meth:`turn`.
        """
        raw = self._send(self.decode, PATH, append_body(self._ask(prompt, salt, tokens)))
        handle = self._handle(raw)
        return self._answer(raw), handle

    def plain(self, prompt: Sequence[int], salt: str, tokens: int) -> Answer:
        """Full recomputation on decode, which leaves nothing."""
        ask = self._ask(prompt, salt, tokens)
        return self._answer(self._send(self.decode, PATH, decode_body(ask, None)))

    def streamed(self, prompt: Sequence[int], salt: str, tokens: int) -> Handle | None:
        """The handle at the end of a stream of decode's, None where there is none."""
        body = json.loads(append_body(self._ask(prompt, salt, tokens)))
        raw = self._send(self.decode, PATH, json.dumps({**body, "stream": True}).encode())
        events = [line.removeprefix(b"data: ") for line in raw.splitlines() if line.startswith(b"data: ")]
        if len(events) < 2 or events[-1] != b"[DONE]":
            raise LegError(self.decode, "its stream does not end with [DONE]")
        last = self._read(self.decode, "its stream's last event", events[-2], dict[str, Any])
        return self._handle(events[-2]) if last.get("object") == HANDLE_OBJECT else None

    def release(self, url: str, lease: str) -> bool:
        """End a lease. False where the engine does not know it, or has no leases to end."""
        if self.stock:
            return False
        self._left = [left for left in self._left if left != (url, lease)]
        raw = self._send(url, LEASES_PATH, json.dumps({"release": [lease]}).encode())
        return self._read(url, LEASES_PATH, raw, LeaseReply).leases.get(lease) != "unknown"

    def _release_all(self) -> None:
        """However late it is; once for each engine, so that one that hangs costs one answer's time."""
        if self.stock or not self._left:
            return
        with client(self._patience.answer, headers=self._headers) as http:
            for url in dict.fromkeys(url for url, _ in self._left):
                body = {"release": [lease for at, lease in self._left if at == url]}
                with contextlib.suppress(httpx.HTTPError):
                    http.post(url + LEASES_PATH, json=body)

    def counters(self, url: str) -> Counters:
        """The engine's own, now."""
        try:
            reply = self._http.get(f"{url}/metrics", timeout=self._patience.answer).raise_for_status()
        except httpx.HTTPError as error:
            raise LegError(url, f"/metrics: {error or type(error).__name__}") from error
        try:
            return counters.read(reply.text).counters
        except UNREADABLE as error:
            raise LegError(url, f"/metrics cannot be read: {error}") from error

    def _ask(self, prompt: Sequence[int], salt: str, tokens: int) -> Ask:
        self.spent += len(prompt)
        body: Mapping[str, Any] = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "logprobs": LIKELY,
            "return_tokens_as_token_ids": True,
            "return_token_ids": True,
            "cache_salt": salt,
        }
        return read_ask("completions", json.dumps(body).encode())

    def _answer(self, raw: bytes) -> Answer:
        try:
            return read_completion(raw)
        except MalformedError as error:
            raise LegError(
                self.decode, f"{PATH} answers something else than a completion ({error})"
            ) from error

    def _handle(self, raw: bytes) -> Handle:
        handle = self._read(self.decode, PATH, raw, _Handed).kv_transfer_params
        lease = (handle or {}).get("remote_request_id")
        if handle is None or not isinstance(lease, str):
            raise LegError(self.decode, "its decode leg returns no handle (kv_transfer_params)")
        self._left.append((self.decode, lease))
        if isinstance(host := handle.get("remote_host"), str):
            self.hosts[self.decode] = host
        return handle

    def _read(self, url: str, what: str, raw: bytes, form: type[Form]) -> Form:
        try:
            return read(raw, form)
        except MalformedError as error:
            raise LegError(url, f"{what} answers something else than it should ({error})") from error

    def _send(self, url: str, path: str, body: bytes) -> bytes:
        try:
            reply = self._http.post(url + path, content=body, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            raise LegError(url, f"{path}: {error or type(error).__name__}") from error
        if reply.status_code != 200:
            raise LegError(url, f"{path} answers {reply.status_code}: {reply.text}")
        return reply.content
