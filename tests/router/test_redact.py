"""Passwords of URLs, which no fault, no admin answer and no log line shows."""

from __future__ import annotations

import pytest

from antiphon_server.doctor.declared.manifests.secrets import plain as plain_secrets
from antiphon_server.router.config.config import load
from antiphon_server.router.config.explain import plain
from antiphon_server.router.config.redact import masked, redacted

ENGINES = {"prefill": ["http://p:1"], "decode": ["http://d:1"]}
URLS = {
    "redis://:s3cret/p4ss@h:1": "redis://***@h:1",
    "redis://u:1/s3cret@h/0": "redis://***@h/0",
    "redis://u:s3cret@p4ss@h:6379/0": "redis://***@h:6379/0",
    "redis://:p4ss?s3cret#@h:1": "redis://***@h:1",
    "redis://h:6379/0?password=s3cret": "redis://h:6379/0?***",
    "unix:///run/redis.sock?db=1&password=s3cret": "unix:///run/redis.sock?***",
    "unix:///run/redis.sock?password=p4ss@s3cret": "unix://***",
}
BY_THEMSELVES = {"redis://:p4ss s3cret@h:1": "redis://***@h:1"}
"""In a text, a URL ends at white space."""


@pytest.mark.parametrize(("url", "shown"), [*URLS.items(), *BY_THEMSELVES.items()])
def test_password_of_a_store_is_shown_nowhere(url: str, shown: str) -> None:
    assert redacted(url) == shown
    loaded = load(ENGINES, {"ANTIPHON_STORE": url})
    assert loaded.readable is not None
    told = f"{loaded.explain()} {plain(loaded.readable)}"
    assert "s3cret" not in told
    assert "p4ss" not in told
    if loaded.settings is not None:
        assert plain(loaded.settings)["store"] == shown


@pytest.mark.parametrize("url", URLS)
def test_password_is_not_shown_in_the_middle_of_a_text(url: str) -> None:
    told = masked(f"cannot reach {url!r}, given as {url} by you")
    assert "s3cret" not in told
    assert told.startswith("cannot reach '")
    assert told.endswith(" by you")


@pytest.mark.parametrize("separator", ["/", " ", "@", "?"])
def test_password_of_an_engine_is_not_shown(separator: str) -> None:
    url = f"http://u:p4ss{separator}s3cret@p:1"
    for loaded in (load({**ENGINES, "prefill": [url]}, {}), load(ENGINES, {"ANTIPHON_PREFILL": url})):
        assert "s3cret" not in loaded.explain()
        assert "p4ss" not in loaded.explain()


@pytest.mark.parametrize("value", ["memory", "redis://h:1/2?db=3", "http://h/v1", "redis://:@h", "a@b", ""])
def test_value_without_a_password_is_shown_as_it_is(value: str) -> None:
    assert redacted(value) == value


@pytest.mark.parametrize("url", URLS)
def test_password_in_a_file_of_variables_is_found(url: str) -> None:
    assert plain_secrets("router", {"ANTIPHON_STORE": url}) != ()


@pytest.mark.parametrize(
    "value", ["redis://h:1/2", "redis://:${PW}@h", "redis://me:$PW@h", "redis://h?password=${PW:-}"]
)
def test_password_that_comes_from_elsewhere_is_none(value: str) -> None:
    assert plain_secrets("router", {"ANTIPHON_STORE": value}) == ()
