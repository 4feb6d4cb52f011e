"""What servers say is shown without keys, without orders to the terminal, and not at any length."""

from __future__ import annotations

import pytest

from antiphon_server.doctor.fleet import checks
from antiphon_server.doctor.fleet.examine import examine
from antiphon_server.doctor.fleet.foreign import LONGEST, shown
from antiphon_server.doctor.fleet.target import FleetTarget
from doctor.live.hostile import engine, hostile, say, tell

KEY = "secret-of-engines"


@pytest.mark.parametrize("before", ["", "x" * (LONGEST - 40)], ids=["whole", "where it is cut"])
def test_body_of_an_error_is_cut_and_shows_no_key(before: str) -> None:
    body = f"\x1b[31m{before}\x1b]0;title\x07 Authorization: Bearer {KEY}\r\n\u202e{'y' * 5000}".encode()
    acts = engine("decode", completions=say(body, 500))
    with hostile(engine("prefill")) as prefill, hostile(acts) as decode:
        target = FleetTarget(None, (prefill.url,), (decode.url,), engine_key=KEY, timeout=60.0)
        (what,) = [one.what for one in examine(target).findings if one.check == checks.LEG.word]
    assert "/v1/completions answers 500: " in what
    assert what.isprintable()
    assert "title" not in what
    assert KEY[:8] not in what
    assert len(what) <= LONGEST


def test_what_a_router_says_shows_no_key_either() -> None:
    acts = {"/health": say(b""), "/ready": say(b'{"status": "%b"}' % KEY.encode(), 503)}
    with hostile({**acts, "/v1/models": tell({"data": []})}) as router:
        found = examine(FleetTarget(router.url, admin_key=KEY, timeout=60.0))
    assert checks.ROUTER.word in [one.check for one in found.findings]
    assert KEY not in str(found)


@pytest.mark.parametrize(
    ("text", "keys", "told"),
    [
        ("a\x1b[1;31mb\x9b2J\x00c\u2028d", (), "ab 2J c d"),
        ("Bearer k, not keys", ("k",), "Bearer [key], not keys"),
        ("xlong-secretx long-secret-more", ("long-secret", "long-secret-more"), "x[key]x [key]"),
        ('{"key": "a\\"b\\"c-long"}', ('a"b"c-long',), '{"key": "[key]"}'),
        ("?key=a%2Fb%2Fc-long", ("a/b/c-long",), "?key=[key]"),
        ("sec\x1b[0mret-key", ("secret-key",), "[key]"),
    ],
)
def test_words_are_made_fit_to_be_shown(text: str, keys: tuple[str, ...], told: str) -> None:
    assert shown(text, keys) == told
