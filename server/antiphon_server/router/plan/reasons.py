"""The words in which the router tells what it did with a turn: its path, and the reason for it.

They stand in ``X-Antiphon-Reuse``, in the metrics and in the logs, and the operator's guide explains them.
"""

from __future__ import annotations

from enum import StrEnum


class Path(StrEnum):
    """How the prompt's KV comes to be. ``append``: decode has it and computes what is new. ``reuse``: prefill
    pulls it from decode and computes what is new. ``cold``: all is computed."""

    APPEND = "append"
    REUSE = "reuse"
    COLD = "cold"


class Reason(StrEnum):
    """Why a turn took its path, or why it did not go straight to decode. ``meaning``: for people."""

    meaning: str

    def __new__(cls, word: str, meaning: str) -> Reason:
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.meaning = meaning
        return reason

    SHORT = "short", "append: what is new is short enough to be fastest straight on decode"
    TRIAL = "trial", "append: expected to be slower, but not measured for long"
    STORED = "stored", "append: the history is a stored response's, which only that engine has"

    FULL = "full", "reuse: all that decode held was of use"
    CUT = "cut", "reuse: the prompt diverges from what decode held; the common prefix was taken"
    LOCAL = "local", "reuse: prefill's own cache held all that decode could give"
    PLANNED = "planned", "reuse: prefill has not answered yet (only in logs)"

    ANONYMOUS = "anonymous", "cold: the request names no conversation"
    FIRST = "first", "cold: nothing is known of the conversation"
    LOST = "lost", "cold: its KV was evicted, ended or never reported"
    BUSY = "busy", "cold: another turn of the conversation holds its KV"
    EXPIRED = "expired", "cold: the lease ended, or is about to"
    RESTARTED = "restarted", "cold: the engine that held the KV has started anew"
    PARTED = "parted", "cold: the prefill engine and the one that held the KV do not go together"
    UNHEALTHY = "unhealthy", "the engine that held the KV, or every prefill engine, does not answer"
    STOCK = "stock", "cold: an engine without Antiphon's plug-in"
    UNSUPPORTED = "unsupported", "an engine that cannot reuse, or decode without a prefix cache"
    OFF = "off", "the path is switched off by paths"
    SLOWER = "slower", "cold: pulling was expected to take longer than computing"

    MISMATCH = "mismatch", "cold, by prefill: the prompt shares no block with what decode held"
    THRESHOLD = "threshold", "cold, by prefill: too little is shared to be worth a transfer"
    UNSEALED = "unsealed", "cold, by prefill: the handle carries no prefix chain to check"
    FOREIGN = "foreign", "cold, by prefill: the chain was made by another hash or block size"
    FAILED = "failed", "cold: a leg or a transfer failed, and the turn was computed anew"

    ELSEWHERE = "elsewhere", "no append: the turn does not go to the engine that holds the KV"
    REWRITTEN = "rewritten", "no append: the request does not extend the last one, so what is new is unknown"
    CROWDED = "crowded", "no append: decode's other streams would slow down by more than append_slowdown"
    UNMEASURED = "unmeasured", "no append: no rates are known yet"
    LONG = "long", "no append: another path is expected to be faster"

    MULTIPLE = "multiple", "cold, decode alone: several answers are asked for"
    BEAM = "beam", "cold, decode alone: beam search"
    ECHO = "echo", "cold, decode alone: the prompt is to be echoed"
    PROMPT_LOGPROBS = "prompt_logprobs", "cold, decode alone: log-probabilities of the prompt are asked for"
    MEDIA = "media", "cold, decode alone: the prompt has parts that are not text"
    BATCH = "batch", "cold, decode alone: several prompts, or embeddings"
    BACKGROUND = "background", "cold, decode alone: a response that nobody waits for"
    BUILTIN = "builtin", "cold, decode alone: tools that the engine runs itself"
    TEMPLATE = "template", "cold, decode alone: a stored prompt"
