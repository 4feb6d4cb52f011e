"""The health check as a container runs it: a process, against real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

BOUND_S = 60.0
"""Only against a check that never ends."""
Connection = socket.socket


@contextlib.contextmanager
def server(answer: Callable[[Connection], None]) -> Iterator[str]:
    """A server that treats each connection so, one after the other; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/ready"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(BOUND_S)
        assert not thread.is_alive()


def saying(status: str) -> Callable[[Connection], None]:
    return lambda connection: connection.sendall(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())


def silent(connection: Connection) -> None:
    """Until the other side hangs up."""
    connection.recv(1)


def trickling(connection: Connection) -> None:
    """A header that never ends, a byte at a time: each resets a socket's timeout."""
    connection.settimeout(0.05)
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            connection.sendall(b"x")


def check(*words: str, **environ: str) -> tuple[int, str]:
    """Exit code and what it says."""
    ran = subprocess.run(
        [sys.executable, "-m", "antiphon_server.health", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
        env={**os.environ, **environ},
    )
    assert ran.stdout == ""
    return ran.returncode, ran.stderr.strip()


def test_a_server_that_is_ready_is_healthy() -> None:
    with server(saying("200 OK")) as url:
        assert check(url) == (0, "")


@pytest.mark.parametrize("status", ["503 Service Unavailable", "404 Not Found", "204 No Content"])
def test_another_status_is_named(status: str) -> None:
    with server(saying(status)) as url:
        assert check(url) == (1, f"{url} answers {status[:3]}, not 200")


def test_a_port_where_nobody_listens_is_named() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/ready"
        code, said = check(url)
    assert code == 1
    assert said.startswith(f"{url} cannot be reached: ")
    assert "refused" in said


@pytest.mark.parametrize("answer", [silent, trickling])
def test_a_server_that_hangs_is_given_up(answer: Callable[[Connection], None]) -> None:
    with server(answer) as url:
        code, said = check(url, "0.5")
    assert code == 1
    assert said.startswith(url)


@pytest.mark.parametrize("answer", [lambda connection: connection.sendall(b"SSH-2.0\r\n"), lambda _: None])
def test_what_is_no_answer_of_http_is_not_healthy(answer: Callable[[Connection], None]) -> None:
    with server(answer) as url:
        code, said = check(url)
    assert code == 1
    assert said.startswith(f"{url} cannot be reached: ")


def test_a_proxy_of_the_environment_is_not_asked() -> None:
    with server(saying("200 OK")) as url:
        assert check(url, http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9") == (0, "")


@pytest.mark.parametrize(
    "words", [(), ("localhost:8000",), ("file:///etc/passwd",), ("http://h/", "soon"), ("http://h/", "0")]
)
def test_what_cannot_be_asked_is_told_with_the_usage(words: tuple[str, ...]) -> None:
    code, said = check(*words)
    assert code == 2
    assert said.startswith("usage: python -m antiphon_server.health URL")


@pytest.mark.parametrize("user", ["name:s3cret", "s3cret", "name:s3@cret", "name:s3/cret"])
def test_a_password_in_the_url_is_neither_sent_nor_shown(user: str) -> None:
    def shown(url: str) -> tuple[int, str]:
        return check(url.replace("://", f"://{user}@"))

    with server(saying("503 Service Unavailable")) as url:
        assert shown(url) == (1, f"{url} answers 503, not 200")
    with server(saying("200 OK")) as url:
        assert shown(url) == (0, "")
    code, said = shown(url)
    assert code == 1
    assert said.startswith(f"{url} cannot be reached: ")
    assert "cret" not in said


def test_an_at_sign_in_the_path_is_no_user() -> None:
    with server(saying("503 Service Unavailable")) as url:
        assert check(f"{url}/a@b") == (1, f"{url}/a@b answers 503, not 200")


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, antiphon_server.health as health;"
        "known = {*sys.stdlib_module_names, '__main__', 'antiphon_server'};"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] not in known))"
    )
    # -S: what the environment's own start-up files import is not the check's.
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.stdout.split() == []
