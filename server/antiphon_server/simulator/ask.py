"""OpenAI requests as the engine reads them: checked, rendered, tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

import msgspec

from antiphon_server.simulator.answer import Slot, call_script, recomputed, text_script
from antiphon_server.simulator.settings import Settings
from antiphon_server.simulator.template import render
from antiphon_server.simulator.tokens import VOCABULARY, Tokenizer

_T = TypeVar("_T")


class BadRequestError(Exception):
    """The request cannot be served; ``status`` is the HTTP status."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.kind = kind or ("NotFoundError" if status == 404 else "BadRequestError")


class StreamOptions(msgspec.Struct):
    """``stream_options``."""

    include_usage: bool | None = None


class _Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    seed: int | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class ChatRequest(_Common, kw_only=True):
    """Body of ``/v1/chat/completions``; other fields are ignored."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(_Common, kw_only=True):
    """Body of ``/v1/completions``; other fields are ignored."""

    prompt: str | list[Any]
    logprobs: int | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of ``/tokenize``."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request ready to run.

    ``call``: name of the function that is called; ``named``: the client chose it by name. ``top``:
    alternatives per token, None without log-probabilities.
    """

    prompt: list[int]
    script: Sequence[Slot]
    limit: int
    choices: int
    salt: str | None
    nonce: int
    handle: Mapping[str, Any] | None
    stream: bool
    usage: bool
    ids: bool
    top: int | None
    call: str | None = None
    named: bool = False


def read_chat(body: Any, settings: Settings) -> Ask:
    """A chat request.

    Raises:
        BadRequestError: it is malformed, too long, or for another model.
    """
    return chat_ask(convert(body, ChatRequest), settings)


def chat_ask(request: ChatRequest, settings: Settings) -> Ask:
    """What a chat request asks for; the other surfaces of conversations are read as chats too, as in vLLM.

    Raises:
        BadRequestError: see :func:`read_chat`.
    """
    ids = _forwarded_ids(request)
    if ids is None or any(not _text_only(message) for message in request.messages):
        ids = prompt_ids(settings, request.messages, request.tools)
    function, named = _called(request, settings)
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    script = (
        call_script(settings, function)
        if function is not None
        else text_script(settings, _least(request, limit))
    )
    top = (request.top_logprobs or 0) if request.logprobs else None
    call = None if function is None else str(function["name"])
    return _ask(request, settings, ids, script, limit, top, call, named)


def read_completion(body: Any, settings: Settings) -> Ask:
    """A completion request with one prompt.

    Raises:
        BadRequestError: it is malformed, too long, or for another model.
    """
    request = convert(body, CompletionRequest)
    ids = _forwarded_ids(request)
    if ids is None:
        ids = _one_prompt(request.prompt, settings)
    limit = 16 if request.max_tokens is None else request.max_tokens
    script = text_script(settings, _least(request, limit))
    return _ask(request, settings, ids, script, limit, request.logprobs)


def read_tokenize(body: Any, settings: Settings) -> list[int]:
    """The ids that ``/tokenize`` answers.

    Raises:
        BadRequestError: there is neither a prompt nor messages.
    """
    request = convert(body, TokenizeRequest)
    if request.messages is not None:
        return prompt_ids(settings, request.messages, request.tools)
    if request.prompt is None:
        raise BadRequestError("/tokenize needs `prompt` or `messages`")
    return Tokenizer(drift=settings.drift).encode(request.prompt)


def prompt_ids(
    settings: Settings,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[int]:
    """Ids of a chat's prompt.

    Raises:
        BadRequestError: a message does not have the form of one.
    """
    try:
        text = render(messages, tools)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequestError(f"messages cannot be rendered: {error!r}", param="messages") from error
    return Tokenizer(drift=settings.drift).encode(text)


def expected_ids(settings: Settings, body: Mapping[str, Any]) -> list[int]:
    """The token ids that full recomputation gives for this chat or completion request (its first choice).

    Raises:
        BadRequestError: the request is malformed.
    """
    plain = {key: value for key, value in body.items() if key != "kv_transfer_params"}
    ask = read_chat(plain, settings) if "messages" in body else read_completion(plain, settings)
    return recomputed(settings, ask.prompt, ask.script, ask.limit, ask.nonce)


def convert(body: Any, kind: type[_T]) -> _T:
    """The body as a request of this kind.

    Raises:
        BadRequestError: it has another form.
    """
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise BadRequestError(str(error)) from error


def _ask(
    request: _Common,
    settings: Settings,
    ids: list[int],
    script: Sequence[Slot],
    limit: int | None,
    top: int | None,
    call: str | None = None,
    named: bool = False,
) -> Ask:
    if request.model not in (None, settings.model):
        raise BadRequestError(f"The model `{request.model}` does not exist.", status=404, param="model")
    if not ids:
        raise BadRequestError("the prompt is empty", param="prompt")
    if limit is not None and limit < 1:
        raise BadRequestError(f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    room = min(settings.max_model_len, settings.capacity * settings.block_size) - len(ids)
    if room < (limit or 1):
        raise BadRequestError(
            f"This model's maximum context length is {room + len(ids)} tokens. However, you requested "
            f"{limit or 1} output tokens and your prompt contains {len(ids)} input tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )
    options = request.stream_options
    return Ask(
        prompt=ids,
        script=script,
        limit=room if limit is None else limit,
        choices=request.n or 1,
        salt=request.cache_salt,
        nonce=request.seed or 0,
        handle=request.kv_transfer_params,
        stream=bool(request.stream),
        usage=bool(options and options.include_usage),
        ids=bool(request.return_token_ids),
        top=top,
        call=call,
        named=named,
    )


def _least(request: _Common, limit: int | None) -> int:
    return (limit or 0) if request.ignore_eos else (request.min_tokens or 0)


def _forwarded_ids(request: _Common) -> list[int] | None:
    """Ids that the router forwards from prefill, so that nothing is tokenised again."""
    ids = (request.kv_transfer_params or {}).pop("prompt_token_ids", None)
    if ids is None or request.echo:
        return None
    if (
        not isinstance(ids, list)
        or not ids
        or any(type(x) is not int or not 0 <= x < VOCABULARY for x in ids)
    ):
        raise BadRequestError(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.",
            param="kv_transfer_params.prompt_token_ids",
        )
    return ids


def _text_only(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return not isinstance(content, list) or all("text" in part for part in content)


def _one_prompt(prompt: str | list[Any], settings: Settings) -> list[int]:
    if isinstance(prompt, str):
        return Tokenizer(drift=settings.drift).encode(prompt)
    if len(prompt) == 1 and not isinstance(prompt[0], int):
        return _one_prompt(prompt[0], settings)
    ids = [token for token in prompt if isinstance(token, int) and 0 <= token < VOCABULARY]
    if len(ids) != len(prompt):
        raise BadRequestError("one prompt a request: a text, or ids of the vocabulary", param="prompt")
    return ids


def _called(request: ChatRequest, settings: Settings) -> tuple[Mapping[str, Any] | None, bool]:
    """The function that the answer calls, and whether the client named it.

    With ``auto`` the model calls one function after the other until it has ``tool_turns`` results for what
    the user said last; then it answers.
    """
    choice = request.tool_choice
    functions = [tool.get("function") or {} for tool in request.tools or ()]
    if choice in (None, "none", "auto"):
        since = takewhile(lambda message: message.get("role") != "user", reversed(request.messages))
        results = sum(message.get("role") == "tool" for message in since)
        calls = choice != "none" and bool(functions) and results < settings.tool_turns
        return (functions[results % len(functions)], False) if calls else (None, False)
    named = isinstance(choice, dict)
    wanted = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    for function in functions:
        if function.get("name") and (not named or function["name"] == wanted):
            return function, named
    raise BadRequestError(
        f"tool_choice {choice!r} names none of the {len(functions)} tools", param="tool_choice"
    )
