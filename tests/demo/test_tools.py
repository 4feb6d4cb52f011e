from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from antiphon_server.demo import tools


def every_call() -> list[tuple[str, str]]:
    calls = []
    for schema in tools.schemas():
        function: dict[str, Any] = schema["function"]
        properties = function["parameters"]["properties"]
        calls += [
            (function["name"], json.dumps(dict(zip(properties, values, strict=True))))
            for values in itertools.product(*(choice["enum"] for choice in properties.values()))
        ]
    return calls


@pytest.mark.parametrize(("name", "arguments"), every_call())
def test_every_call_that_the_schemas_allow_has_a_result(name: str, arguments: str) -> None:
    result = tools.call(name, arguments)
    assert len(result) > 30
    assert not result.startswith("error")
    assert result == tools.call(name, arguments)


def test_schemas_leave_the_model_no_way_to_err() -> None:
    for schema in tools.schemas():
        function = schema["function"]
        assert function["strict"] is True
        assert function["parameters"]["additionalProperties"] is False
        assert function["parameters"]["required"] == list(function["parameters"]["properties"])


def test_errors_are_added_up_from_the_file() -> None:
    rows = [row for row in tools._rows("requests.csv") if row["service"] == "payments"]
    total = sum(int(line.split()[2]) for line in tools.error_rate("payments", "4").splitlines()[1:])
    assert total == sum(int(row["errors"]) for row in rows) > 500


def test_log_is_searched_by_level() -> None:
    found = tools.search_log("payments", "ERROR").splitlines()[1:]
    assert len(found) == tools.MOST_LINES
    assert all(" ERROR " in line for line in found)


def test_the_cause_can_be_found() -> None:
    assert "max_connections 64 -> 6" in tools.recent_changes("payments")
    assert "max_connections = 6" in tools.read_config("payments")


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", "{}", '{"service": "../x"}', '{"service": "payments", "more": 1}']
)
def test_wrong_arguments_are_an_error_that_the_model_can_read(arguments: str) -> None:
    assert tools.call("read_config", arguments).startswith("error: ")
