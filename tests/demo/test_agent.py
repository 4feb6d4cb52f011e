from __future__ import annotations

import json

import pytest

from antiphon_server.bench.timing import Answer
from antiphon_server.demo.agent import Agent, Step, script, shown

CALL = Answer((1, 2), "", tool="read_config", arguments='{"service":"payments"}')


def test_script_calls_every_tool_and_ends_with_the_report() -> None:
    steps = script(6)
    assert len({step.tool for step in steps[:-1]}) == 5
    assert steps[-1] == Step(None)


def test_longer_script_calls_tools_again() -> None:
    assert [step.name for step in script(8)][5:] == [script(8)[0].name, script(8)[1].name, "report"]


def test_script_of_few_turns_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        script(4)


def test_equal_answers_lead_to_equal_requests_byte_for_byte() -> None:
    agents = Agent("tiny"), Agent("tiny")
    for agent in agents:
        agent.request(Step("read_config"))
        agent.take(CALL)
    first, second = (json.dumps(agent.request(Step("search_log"))) for agent in agents)
    assert first == second


def test_answer_goes_into_the_history_as_it_came() -> None:
    agent = Agent("tiny")
    result = agent.take(CALL)
    assistant, tool = agent.request(Step("search_log"))["messages"][-2:]
    assert assistant["tool_calls"][0]["function"] == {"name": "read_config", "arguments": CALL.arguments}
    assert tool["content"] == result
    assert tool["tool_call_id"] == assistant["tool_calls"][0]["id"]
    assert "max_connections" in tool["content"]


def test_each_turns_messages_extend_the_last_turns() -> None:
    agent = Agent("tiny")
    before = agent.request(Step("read_config"))
    agent.take(CALL)
    after = agent.request(Step("read_config"))
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert after["tools"] == before["tools"]


def test_requests_are_not_changed_by_later_turns() -> None:
    agent = Agent("tiny")
    request = agent.request(Step("read_config"))
    agent.take(CALL)
    assert len(request["messages"]) == 2


def test_tool_is_forced_by_name_and_never_in_the_report() -> None:
    agent = Agent("tiny")
    assert agent.request(Step("read_config"))["tool_choice"]["function"] == {"name": "read_config"}
    assert agent.request(Step(None))["tool_choice"] == "none"


def test_report_is_asked_for_by_the_user() -> None:
    agent = Agent("tiny")
    agent.take(CALL)
    assert agent.request(Step(None))["messages"][-1]["role"] == "user"


def test_answers_are_shown_on_one_line() -> None:
    assert shown(CALL) == 'read_config({"service":"payments"})'
    assert shown(Answer((), "two\nlines")) == "two lines"
    assert shown(Answer((), "", "f", "{\t}")) == "f({ })"
