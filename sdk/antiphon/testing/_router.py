"""A router that is none, on a real socket: for the tests of programs that talk to one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from antiphon._outcome import HEADER
from antiphon.testing._books import Books, header_of
from antiphon.testing._recorded import Recorded, parsed
from antiphon.testing._reply import Said
from antiphon.testing._surfaces.other import card, embeddings, error
from antiphon.testing._surfaces.reply import Json, Reply, sse
from antiphon.testing._surfaces.surface import Surface, surface_of

Answer = Callable[[Recorded], Said]


class FakeRouter:
    """Listens on a free port of this machine, records each request, and answers as an Antiphon router does.

    >>> with FakeRouter() as router:  # doctest: +SKIP
    ...     router.replies(tool_call("stock", item="hinges"), "There are 12.")
    ...     run_my_agent(OpenAI(base_url=router.base_url, api_key="none"))
    ...     assert_same_conversation(router.calls())

    It speaks chat completions, completions, responses and messages, whole and streamed, embeddings, models
    and ``GET`` and ``DELETE /conversations/{id}``, under any prefix. There is no model: it says what it is
    told to. ``X-Antiphon-Reuse`` and the usage are honest about the history that came: tokens are counted as
    one for every four characters begun of its JSON; no blocks, thresholds, rates or leases.

    ``requests``: all that came, in order. ``answer``: says what is not in the queue of :meth:`replies`; what
    it raises, the client gets as an HTTP 500 and :meth:`close` raises. ``statuses``: of the
    requests to come, whatever they ask; then 200. ``model``: the one that it lists. ``clock``: seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.answer: Answer = lambda call: "ok"
        self.statuses: deque[int] = deque()
        self.requests: list[Recorded] = []
        self.model = "m"
        self._clock = clock
        self._replies: deque[Said] = deque()
        self._errors: list[Exception] = []
        self._books = Books()
        self._count = 0
        self._changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes, such as ``http://127.0.0.1:34567/v1``.

        Raises:
            RuntimeError: it does not listen.
        """
        if self._server is None:
            raise RuntimeError("the fake router has no address yet: enter it with `with`, or start() it")
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def replies(self, *said: Said) -> None:
        """Say this next, one of them a call: text, a message, ``tool_call(...)``, a list of these."""
        self._replies.extend(said)

    def fail(self, status: int = 500, *, times: int = 1) -> None:
        """Answer the next requests with an error. Clients that know ``retry-after-ms`` retry at once."""
        self.statuses.extend([status] * times)

    def calls(self) -> list[Recorded]:
        """The model calls, in order: retries too, embeddings not."""
        return [request for request in self.requests if request.is_call]

    def ends(self) -> list[str]:
        """Ids of the conversations that clients ended, in order, each as often as they did."""
        ended = [request.conversation for request in self.requests if request.method == "DELETE"]
        return [conversation for conversation in ended if conversation is not None]

    def conversations(self) -> dict[str | None, list[Recorded]]:
        """The model calls by conversation; those without one under None."""
        found: dict[str | None, list[Recorded]] = {}
        for call in self.calls():
            found.setdefault(call.conversation, []).append(call)
        return found

    def wait_until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait for what requests bring about; False where it did not come in time."""
        with self._changed:
            return self._changed.wait_for(true, seconds)

    def start(self) -> FakeRouter:
        """Listen."""
        self._server = _Server(self)
        options = {"poll_interval": 0.02}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=options, name="fake-router")
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop to listen. What was recorded stays.

        Raises:
            Exception: what ``answer`` raised, or a request that is no HTTP; the first of them.
        """
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def __enter__(self) -> FakeRouter:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, request: Recorded, send: _Send) -> None:
        with self._changed:
            place = len(self.requests)
            self.requests.append(request)
            status = self.statuses.popleft() if self.statuses else 200
            self._changed.notify_all()

        def note(**known: Any) -> None:
            with self._changed:
                if any(each is request for each in self.requests[place : place + 1]):  # not cleared meanwhile
                    self.requests[place] = replace(request, **known)

        path = request.path.partition("?")[0]
        surface = surface_of(path)
        if status >= 300:
            note(status=status)
            send(status, error(f"this HTTP {status} was scripted", status), {"retry-after-ms": "1"})
        elif request.method == "POST" and surface is not None:
            self._call(request, surface, note, send)
        else:
            status, body = self._other(request, path)
            note(status=status)
            send(status, body, {})

    def _call(self, call: Recorded, surface: Surface, note: Callable[..., None], send: _Send) -> None:
        with self._changed:
            visit = self._books.begin(call)
            self._count += 1
            number, queued = self._count, self._replies.popleft() if self._replies else None
        reuse, model = visit.reuse, str(call.fields.get("model") or self.model)
        try:
            said = self.answer(call) if queued is None else queued
            reply = Reply(said, model, number, reuse.prompt or 0, reuse.matched or 0)
            whole = surface.whole(reply)
            answer = surface.answer(whole)
        except Exception as raised:
            with self._changed:
                self._errors.append(raised)
                self._books.finish(visit, None, None, self._clock())
            note(status=500, reuse=reuse)
            told = error(f"the fake router's answer raised {raised!r}", 500)
            send(500, told, {"x-should-retry": "false"})
            return
        with self._changed:
            self._books.finish(visit, answer, whole["id"], self._clock())
            if call.final:
                self._books.close(call.conversation)
        note(status=200, reuse=reuse, answer=answer)
        headers = {HEADER: header_of(reuse)}
        if call.fields.get("stream"):
            usage = bool((call.fields.get("stream_options") or {}).get("include_usage"))
            events = (sse(event) for event in surface.events(reply, usage))
            send(200, (part for parts in (events, (surface.ends,)) for part in parts if part), headers)
        else:
            send(200, whole, headers)

    def _other(self, request: Recorded, path: str) -> tuple[int, Json]:
        """What is no model call."""
        method, resource, conversation = request.method, path.rstrip("/"), request.conversation
        if "/conversations/" in path and method in ("GET", "DELETE"):
            with self._changed:
                found = self._books.describe(conversation, self._clock())
                if method == "DELETE" and self._books.close(conversation):
                    return 204, {}
            if found is not None:
                return 200, found
            return 404, error(f"conversation {conversation!r} is not known here", 404)
        if method == "POST" and resource.endswith("/embeddings"):
            return 200, embeddings(request.fields, str(request.fields.get("model") or self.model))
        if method == "GET" and resource.endswith("/models"):
            return 200, {"object": "list", "data": [card(self.model)]}
        if method == "GET" and "/models/" in resource:
            return 200, card(unquote(resource.rpartition("/models/")[2]))
        return 404, error(f"{method} {path} is not served here", 404)


_Send = Callable[[int, Json | Iterator[str], Mapping[str, str]], None]
"""Send a status, a JSON body or the parts of a stream, and headers."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # agents come in hordes

    def __init__(self, router: FakeRouter) -> None:
        super().__init__(("127.0.0.1", 0), _handler(router))
        self._router = router

    def handle_error(self, request: Any, client_address: Any) -> None:
        raised = sys.exc_info()[1]
        if isinstance(raised, Exception) and not isinstance(raised, ConnectionError):  # the client left
            self._router._errors.append(raised)


def _handler(router: FakeRouter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            router._serve(Recorded(self.command, self.path, headers, parsed(raw)), self._send)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

        def _send(self, status: int, body: Json | Iterator[str], headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if isinstance(body, dict):
                content = b"" if status == 204 else json.dumps(body).encode()
                if status != 204:
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                return
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in body:
                self.wfile.write(f"{len(part.encode()):x}\r\n{part}\r\n".encode())
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
