from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import antiphon
import antiphon_openai
from antiphon._telemetry import ATTRIBUTE, announce
from antiphon.testing import FakeRouter

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Recorder:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("test")

    def shutdown(self) -> None:
        self._provider.shutdown()

    def ids(self) -> dict[str, Any]:
        """Span's name -> conversation."""
        finished: tuple[ReadableSpan, ...] = self._exporter.get_finished_spans()
        return {span.name: (span.attributes or {}).get("gen_ai.conversation.id") for span in finished}


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.shutdown()


def test_wrapped_and_hooked_calls_name_their_conversation_on_the_running_span(
    antiphon_router: FakeRouter, recorder: Recorder
) -> None:
    client = antiphon_openai.wrap(OpenAI(base_url=antiphon_router.base_url, api_key="k"))
    with client, antiphon.hook(httpx.Client()) as transport, recorder.tracer.start_as_current_span("agent"):
        with antiphon.conversation("wrapped"), recorder.tracer.start_as_current_span("wrapped call"):
            client.chat.completions.create(**CHAT)
        with antiphon.conversation("hooked"), recorder.tracer.start_as_current_span("hooked call"):
            transport.post(f"{antiphon_router.base_url}/chat/completions", json=CHAT)
        with recorder.tracer.start_as_current_span("outside"):
            transport.post(f"{antiphon_router.base_url}/chat/completions", json=CHAT)
    assert recorder.ids() == {
        "wrapped call": "wrapped",
        "hooked call": "hooked",
        "outside": None,
        "agent": None,
    }


def test_call_that_names_another_conversation_announces_nothing(
    antiphon_router: FakeRouter, recorder: Recorder
) -> None:
    with (
        antiphon.hook(httpx.Client()) as transport,
        antiphon.conversation("c"),
        recorder.tracer.start_as_current_span("call"),
    ):
        transport.post(f"{antiphon_router.base_url}/responses", json=CHAT, headers={"X-Session-ID": "mine"})
    assert recorder.ids() == {"call": None}


def test_conversation_that_a_framework_named_stays(recorder: Recorder) -> None:
    with recorder.tracer.start_as_current_span("call", attributes={ATTRIBUTE: "of-the-framework"}):
        announce(antiphon.conversation("c"))
    assert recorder.ids() == {"call": "of-the-framework"}


def test_span_that_is_not_recorded_or_over_is_left_alone(recorder: Recorder) -> None:
    announce(antiphon.conversation("c"))
    with trace.use_span(trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)):
        announce(antiphon.conversation("c"))
    span = recorder.tracer.start_span("over")
    span.end()
    with trace.use_span(span):
        announce(antiphon.conversation("c"))
    assert recorder.ids() == {"over": None}


def test_tracer_that_fails_costs_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def fail() -> None:
        asked.append(None)
        raise LookupError

    monkeypatch.setattr(trace, "get_current_span", fail)
    announce(antiphon.conversation("c"))
    assert asked == [None]


def test_telemetry_is_not_imported_for_it() -> None:
    code = """
import sys, antiphon
from antiphon._telemetry import announce
announce(antiphon.conversation("c"))
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
