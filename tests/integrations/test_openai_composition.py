"""The wrapped client inside other libraries, and they around it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter
from antiphon_openai import _reply

pytestmark = pytest.mark.usefixtures("loopback_only")

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE: Any = {"model": "m", "input": "hello"}
SPAN_ATTRIBUTE = "gen_ai.conversation.id"


class City(pydantic.BaseModel):
    city: str


@pytest.fixture(autouse=True)
def answers_in_json(antiphon_router: FakeRouter) -> None:
    """For ``parse()``."""
    antiphon_router.answer = lambda call: '{"city": "Rome"}'


@pytest.fixture
def plain(antiphon_router: FakeRouter) -> Iterator[OpenAI]:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        yield client


@pytest.fixture
async def aplain(antiphon_router: FakeRouter) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        yield client


def assert_stamped(antiphon_router: FakeRouter, *paths: str) -> None:
    calls = antiphon_router.calls()
    assert [call.path for call in calls] == [f"/v1/{path}" for path in paths]
    for call in calls:
        assert (call.body["conversation_id"], call.headers["x-session-id"]) == ("c", "c")
    assert len({call.headers["x-turn-id"] for call in calls}) == len(calls)
    assert antiphon_router.ends() == ["c"]


@pytest.fixture
def wrap_openai(monkeypatch: pytest.MonkeyPatch) -> Any:
    """LangSmith's wrapper; what it traces stays here."""
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.delenv(name, raising=False)
    wrappers = pytest.importorskip("langsmith.wrappers")
    service = pytest.importorskip("langsmith").Client(
        api_url="http://127.0.0.1:1", api_key="k", auto_batch_tracing=False
    )
    return functools.partial(wrappers.wrap_openai, tracing_extra={"client": service})


@pytest.mark.parametrize("order", ["theirs first", "ours first"])
@pytest.mark.parametrize("tracing", [False, "local"])
def test_langsmith_traces_stamped_calls(
    antiphon_router: FakeRouter, plain: OpenAI, wrap_openai: Any, order: str, tracing: Any
) -> None:
    wrappers = [wrap_openai, antiphon_openai.wrap]
    for wrapper in wrappers if order == "theirs first" else reversed(wrappers):
        assert wrapper(plain) is plain
    assert isinstance(plain, OpenAI)
    with pytest.importorskip("langsmith").tracing_context(enabled=tracing), antiphon.conversation("c"):
        assert plain.chat.completions.create(**CHAT).choices[0].message.content
        assert len(list(plain.chat.completions.create(**CHAT, stream=True))) > 2
        assert plain.responses.create(**RESPONSE).output_text
    assert_stamped(antiphon_router, "chat/completions", "chat/completions", "responses")
    antiphon_openai.unwrap(plain)
    assert type(plain) is OpenAI
    assert hasattr(plain.chat.completions.create, "__wrapped__")  # theirs is still there


@pytest.mark.parametrize("order", ["theirs first", "ours first"])
async def test_langsmith_traces_stamped_async_calls(
    antiphon_router: FakeRouter, aplain: AsyncOpenAI, wrap_openai: Any, order: str
) -> None:
    wrappers = [wrap_openai, antiphon_openai.wrap]
    for wrapper in wrappers if order == "theirs first" else reversed(wrappers):
        wrapper(aplain)
    async with antiphon.conversation("c"):
        assert (await aplain.chat.completions.create(**CHAT)).id
        async for _ in await aplain.chat.completions.create(**CHAT, stream=True):
            pass
    assert_stamped(antiphon_router, "chat/completions", "chat/completions")


def test_instructor_takes_a_wrapped_client(antiphon_router: FakeRouter, plain: OpenAI) -> None:
    instructor = pytest.importorskip("instructor")
    client = instructor.from_openai(antiphon_openai.wrap(plain), mode=instructor.Mode.JSON)
    with antiphon.conversation("c"):
        assert client.chat.completions.create(**CHAT, response_model=City).city == "Rome"
    assert_stamped(antiphon_router, "chat/completions")


async def test_instructor_takes_a_wrapped_async_client(
    antiphon_router: FakeRouter, aplain: AsyncOpenAI
) -> None:
    instructor = pytest.importorskip("instructor")
    client = instructor.from_openai(antiphon_openai.wrap(aplain), mode=instructor.Mode.JSON)
    async with antiphon.conversation("c"):
        assert (await client.chat.completions.create(**CHAT, response_model=City)).city == "Rome"
    assert_stamped(antiphon_router, "chat/completions")


@pytest.fixture
def spans() -> Iterator[Any]:
    """OpenInference's spans, once they have ended: a function that gives their attributes."""
    instrumentation = pytest.importorskip("openinference.instrumentation.openai")
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter, provider = memory.InMemorySpanExporter(), trace.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    instrumentor = instrumentation.OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield lambda: [span.attributes for span in exporter.get_finished_spans()]
    instrumentor.uninstrument()
    provider.shutdown()


def test_openinference_spans_name_the_conversation(
    antiphon_router: FakeRouter, plain: OpenAI, spans: Any
) -> None:
    antiphon_openai.wrap(plain)
    with antiphon.conversation("c"):
        plain.chat.completions.create(**CHAT)
        list(plain.chat.completions.create(**CHAT, stream=True))
        plain.chat.completions.create(**CHAT, extra_body={"conversation_id": "mine"})
    plain.chat.completions.create(**CHAT)
    assert [attributes.get(SPAN_ATTRIBUTE) for attributes in spans()] == ["c", "c", None, None]
    assert len(antiphon_router.calls()) == 4


async def test_openinference_spans_of_async_calls_name_the_conversation(
    antiphon_router: FakeRouter, aplain: AsyncOpenAI, spans: Any
) -> None:
    antiphon_openai.wrap(aplain)
    async with antiphon.conversation("c"):
        await aplain.chat.completions.create(**CHAT)
        await aplain.responses.create(**RESPONSE)
    assert [attributes.get(SPAN_ATTRIBUTE) for attributes in spans()] == ["c", "c"]
    assert_stamped(antiphon_router, "chat/completions", "responses")


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_agents_run_over_a_wrapped_client(
    antiphon_router: FakeRouter, aplain: AsyncOpenAI, path: str, streamed: bool
) -> None:
    agents = pytest.importorskip("agents")
    provider = agents.OpenAIProvider(
        openai_client=antiphon_openai.wrap(aplain), use_responses=path == "responses"
    )
    config = agents.RunConfig(model_provider=provider, tracing_disabled=True)
    agent = agents.Agent(name="a", model="m")
    async with antiphon.conversation("c"):
        if streamed:
            result = agents.Runner.run_streamed(agent, "hello", run_config=config)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, "hello", run_config=config)
        assert result.final_output == '{"city": "Rome"}'
    assert_stamped(antiphon_router, path)


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_pydantic_ai_runs_over_a_wrapped_client(
    antiphon_router: FakeRouter, aplain: AsyncOpenAI, path: str
) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    kind = models.OpenAIResponsesModel if path == "responses" else models.OpenAIChatModel
    agent = pydantic_ai.Agent(
        kind("m", provider=providers.OpenAIProvider(openai_client=antiphon_openai.wrap(aplain)))
    )
    async with antiphon.conversation("c"):
        assert (await agent.run("hello")).output == '{"city": "Rome"}'
    assert_stamped(antiphon_router, path)


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm")


@pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning")  # of its own types
def test_litellm_takes_a_wrapped_client(antiphon_router: FakeRouter, plain: OpenAI, litellm: Any) -> None:
    antiphon_openai.wrap(plain)
    with antiphon.conversation("c"):
        litellm.completion(**{**CHAT, "model": "openai/m"}, client=plain)
    assert_stamped(antiphon_router, "chat/completions")


@pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning")  # of its own types
def test_litellm_takes_a_hooked_transport(
    antiphon_router: FakeRouter, litellm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with antiphon.hook(httpx.Client()) as transport, antiphon.conversation("c"):
        monkeypatch.setattr(litellm, "client_session", transport)
        server = {"api_base": antiphon_router.base_url, "api_key": "k"}
        litellm.completion(**{**CHAT, "model": "openai/m"}, **server)
    assert [call.headers["x-session-id"] for call in antiphon_router.calls()] == ["c"]
    assert antiphon_router.ends() == ["c"]


def test_hooked_transport_under_a_wrapped_client_stamps_and_observes_once(
    antiphon_router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[str | None] = []
    monkeypatch.setattr(_reply, "observe", lambda conversation, exchange: observed.append(exchange.turn))
    monkeypatch.setattr(
        "antiphon._hook.observe", lambda conversation, exchange: observed.append(exchange.turn)
    )
    transport: Any = antiphon.hook(httpx.Client())
    with OpenAI(base_url=antiphon_router.base_url, api_key="k", http_client=transport) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
    assert_stamped(antiphon_router, "chat/completions")
    assert observed == [antiphon_router.calls()[0].headers["x-turn-id"]]
