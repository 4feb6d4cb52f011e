from __future__ import annotations

import socket

import pytest

from antiphon_server.stack.ports import PortError, allocate, free, search
from antiphon_server.stack.settings import StackSettings


def test_the_wanted_ports_are_taken_when_free() -> None:
    ports = allocate(StackSettings(prefill=2, decode=2), lambda port: True)
    assert ports.router == 8000
    assert [engine.http for engine in ports.prefill] == [8100, 8101]
    assert [engine.http for engine in ports.decode] == [8200, 8201]
    assert [engine.side_channel for engine in (*ports.prefill, *ports.decode)] == [5600, 5601, 5602, 5603]


def test_the_search_goes_behind_a_taken_port() -> None:
    taken = {8000, 8001, 8100, 5600}
    ports = allocate(StackSettings(), lambda port: port not in taken)
    assert (ports.router, ports.prefill[0].http, ports.prefill[0].side_channel) == (8002, 8101, 5601)


def test_no_port_is_given_twice() -> None:
    ports = allocate(StackSettings(port=8100, prefill=120, decode=2), lambda port: True)
    engines = (*ports.prefill, *ports.decode)
    given = [ports.router, *(engine.http for engine in engines), *(engine.side_channel for engine in engines)]
    assert len(set(given)) == len(given)


def test_a_row_of_side_channels_has_no_gap() -> None:
    ports = allocate(StackSettings(data_parallel=4), lambda port: port != 5602)
    assert [engine.side_channel for engine in (*ports.prefill, *ports.decode)] == [5603, 5607]


def test_nothing_free_is_told_with_the_port() -> None:
    with pytest.raises(PortError, match="8000"):
        search(8000, lambda port: False, set())


def test_the_search_stays_below_the_last_port() -> None:
    assert search(65535, lambda port: True, set()) == 65535
    with pytest.raises(PortError):
        search(65535, lambda port: True, set(), width=2)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_listening_socket_is_not_free(address: str) -> None:
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not free(port)
    assert free(port)
