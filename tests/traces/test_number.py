from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon_server.traces.moment import moment
from antiphon_server.traces.number import count, number


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that does not keep UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("value", [None, True, "x", -1, "nan", "inf", float("inf"), 10**400, [], {}])
def test_no_number(value: Any) -> None:
    assert number(value) is None
    assert count(value) is None


def test_numbers() -> None:
    assert (number("1.5"), number(3), count(2.9), count("7"), count(1e15)) == (1.5, 3.0, 2, 7, None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "value",
    [
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00.000000Z",
        "2026-01-01T09:00:00+09:00",
        1767225600,
        1767225600e3,
        "2026-01-01 00:00:00 UTC",
        "2026-01-01T00:00:00GMT",
        "2026-01-01 00:00:00 Z",
        "2026-01-01 09:00:00 +0900",
        "2026-01-01 00:00:00 +0000 UTC",
        "01/Jan/2026:09:00:00 +0900",
        "[01/Jan/2026:00:00:00 +0000]",
        "Thu, 01 Jan 2026 00:00:00 GMT",
    ],
)
def test_moments(value: Any) -> None:
    assert moment(value) == 1767225600.0


@pytest.mark.parametrize(
    "value", ["yesterday", "", "UTC", " ", "1/2/2026 10:00", None, {}, "0001-01-01T00:00:00+23:00"]
)
def test_no_moment(value: Any) -> None:
    assert moment(value) is None
