"""The prefix check as a pure function, over real chained hashes and no vLLM."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.engine.hashing import Hashing, compare, covers, tail_digest
from antiphon_server.protocol import Match, Seal

BLOCK = 4
HASHING = Hashing("sha256", "seed", BLOCK, BLOCK)
tokens = st.lists(st.integers(0, 2), max_size=30)


def hashes(ids: Sequence[int], salt: str = "", unit: int = BLOCK) -> list[bytes]:
    """Chained block hashes as an engine makes them, one per full block of ``unit`` tokens."""
    out, parent = [], salt.encode()
    for start in range(0, len(ids) - unit + 1, unit):
        parent = hashlib.sha256(parent + repr(ids[start : start + unit]).encode()).digest()
        out.append(parent)
    return out


def common(left: Sequence[int], right: Sequence[int]) -> int:
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    return same


@given(held=tokens, prompt=tokens)
def test_reusable_prefix_is_the_common_prefix_rounded_down_to_a_block(
    held: list[int], prompt: list[int]
) -> None:
    verdict = compare(HASHING, HASHING.seal(hashes(held), len(held)), hashes(prompt), len(prompt))
    assert verdict.tokens == common(held, prompt) // BLOCK * BLOCK


@given(held=tokens, unit=st.sampled_from([1, 2, 4]))
def test_finer_hash_units_give_one_digest_per_block(held: list[int], unit: int) -> None:
    fine = Hashing("sha256", "seed", BLOCK, unit)
    assert len(fine.digests(hashes(held, unit=unit), len(held))) == len(held) // BLOCK


def test_digests_stop_where_the_kv_stops() -> None:
    ids = list(range(3 * BLOCK))
    assert len(HASHING.digests(hashes(ids), 2 * BLOCK - 1)) == 1


@pytest.mark.parametrize(
    ("seal", "match"),
    [
        (None, Match.UNSEALED),
        (Seal("sha256", "other", BLOCK, 0, ""), Match.FOREIGN),
        (Seal("xxhash", "seed", BLOCK, 0, ""), Match.FOREIGN),
        (Seal("sha256", "seed", 2 * BLOCK, 0, ""), Match.FOREIGN),
        (Seal("sha256", "seed", BLOCK, 0, ""), Match.MISMATCH),
    ],
)
def test_chain_that_proves_nothing_gives_no_tokens(seal: Seal | None, match: Match) -> None:
    verdict = compare(HASHING, seal, hashes(list(range(8))), 8)
    assert (verdict.tokens, verdict.match) == (0, match)


def test_another_cache_salt_shares_no_block() -> None:
    ids = list(range(12))
    verdict = compare(HASHING, HASHING.seal(hashes(ids, "a"), 12), hashes(ids, "b"), 12)
    assert verdict.match is Match.MISMATCH


@given(prompt=tokens, other=tokens)
def test_decode_accepts_prefill_kv_of_its_own_prompt_only(prompt: list[int], other: list[int]) -> None:
    tail = tail_digest(other[len(other) // BLOCK * BLOCK :])
    seal = HASHING.seal(hashes(other), len(other), tail=tail)
    assert covers(HASHING, seal, hashes(prompt), prompt, len(prompt)) == (prompt == other)


def test_decode_accepts_a_prefill_that_stopped_short_by_design() -> None:
    prompt = list(range(10))
    short = prompt[:9]
    seal = HASHING.seal(hashes(short), 9, tail=tail_digest(short[8:]))
    assert covers(HASHING, seal, hashes(prompt), prompt, needed=9)
    assert not covers(HASHING, seal, hashes(prompt), prompt, needed=10)
