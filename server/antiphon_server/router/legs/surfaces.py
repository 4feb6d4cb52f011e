"""The four surfaces, as vLLM 0.31..0.32 serves them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antiphon_server.router.legs import alone
from antiphon_server.router.legs.form import ANSWER_ONLY, FALSE, TRUE, Form, Surface, value
from antiphon_server.router.plan.reasons import Reason

_DONE = b"data: [DONE]"
_SAMPLING = (
    alone.several("n", "best_of"),
    alone.wanted("use_beam_search", Reason.BEAM),
    alone.wanted("echo", Reason.ECHO),
    alone.given("prompt_logprobs", Reason.PROMPT_LOGPROBS),
)

CHAT = Form(
    "chat",
    "/v1/chat/completions",
    limits=("max_completion_tokens", "max_tokens"),
    alone=_SAMPLING,
    media=alone.media(
        "messages",
        "image_url",
        "input_image",
        "image_pil",
        "image_embeds",
        "input_audio",
        "audio_url",
        "audio_embeds",
        "video_url",
        "video_embeds",
        "prompt_embeds",
        "file",
    ),
    ends=(_DONE,),
    role=b'"delta":{"role":"assistant","content":""}',
    answer_only=ANSWER_ONLY,
    prefill={"return_token_ids": TRUE},
)

COMPLETIONS = Form(
    "completions",
    "/v1/completions",
    limits=("max_tokens",),
    limit=16,
    alone=(*_SAMPLING, alone.batch),
    ends=(_DONE,),
    answer_only=ANSWER_ONLY | {"max_completion_tokens"},
    prefill={"return_token_ids": TRUE},
)

RESPONSES = Form(
    "responses",
    "/v1/responses",
    limits=("max_output_tokens",),
    alone=(
        # The history is in the memory of the engine that made the response.
        alone.given("previous_response_id", Reason.STORED),
        alone.wanted("background", Reason.BACKGROUND),
        alone.given("prompt", Reason.TEMPLATE),
        alone.engine_tools,
        alone.media("input", "input_image", "input_file", "input_audio", "computer_screenshot"),
    ),
    ends=(
        b"event: response.completed",
        b"event: response.incomplete",
        b"event: response.failed",
        b"event: error",
    ),
    opening=(b"event: response.created", b"event: response.in_progress", b"event: response.queued"),
    answer_only=ANSWER_ONLY | {"include", "background", "max_tool_calls", "metadata"},
    # Not for its messages: it is the only way to see the prompt's ids on this surface.
    prefill={"enable_response_messages": TRUE, "store": FALSE},
)


def _forces_a_call(choice: msgspec.Raw) -> bool:
    return value({"": choice}, "") != {"type": "none"}


MESSAGES = Form(
    "messages",
    "/v1/messages",
    limits=("max_tokens",),
    alone=(),
    media=alone.media("messages", "image", "document"),
    ends=(b"event: message_stop", b"event: error"),
    opening=(b"event: message_start", b"event: ping"),
    answer_only=ANSWER_ONLY | {"stop_sequences", "metadata"},
    # vLLM reads a forced call's arguments as JSON, and of one token they are none.
    answer_only_if={"tool_choice": _forces_a_call},
)

FORMS: Mapping[Surface, Form] = {form.surface: form for form in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}
