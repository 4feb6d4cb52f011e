"""The operator's guide and the reference are complete and true."""

from __future__ import annotations

import re
from pathlib import Path

from antiphon_server.router.config import reference
from antiphon_server.router.config.options import options
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.plan.reasons import Reason

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "server" / "antiphon_server" / "router"
GUIDE = (ROOT / "docs" / "operating.md").read_text()
REFERENCE = (ROOT / "docs" / "router-reference.md").read_text()

LOGGED = re.compile(r'(?:log|request)\.(?:log|debug|info|warning|error|exception)\(\s*"([a-z]+\.[a-z_]+)"')
NAMED = re.compile(r"event = (.*)")


def logged() -> set[str]:
    """Events that the router's code logs."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        source = path.read_text()
        found |= set(LOGGED.findall(source))
        for line in NAMED.findall(source):
            found |= set(re.findall(r'"([a-z]+\.[a-z_]+)"', line))
    return found


def test_reference_is_what_the_code_says() -> None:
    assert reference.render() == REFERENCE, (
        "write it anew: python -m antiphon_server.router.config.reference docs/router-reference.md"
    )


def test_reference_has_every_setting_and_reason() -> None:
    for name in RouterSettings.model_fields:
        assert f"`ANTIPHON_{name.upper()}`" in REFERENCE
    for reason in Reason:
        assert f"| `{reason}` | {reason.meaning} |" in REFERENCE


def test_every_setting_says_what_it_is() -> None:
    assert [option.name for option in options() if not option.description] == []


def test_guide_explains_every_event_that_is_logged() -> None:
    events = logged()
    assert len(events) > 30
    assert {event for event in events if f"`{event}`" not in GUIDE} == set()


def test_guide_names_no_event_that_is_never_logged() -> None:
    told = set(re.findall(r"`([a-z]+\.[a-z_]+)`", GUIDE.partition("## The log")[2]))
    assert told - logged() == set()


def test_guide_names_only_metrics_and_settings_that_exist() -> None:
    for metric in set(re.findall(r"\bantiphon_[a-z_]+\b", GUIDE)):
        assert f"`{metric}`" in REFERENCE, metric
    for flag in set(re.findall(r"--([a-z][a-z-]+)", GUIDE)) - {"config", "probe", "print"}:
        assert f"`--{flag}`" in REFERENCE, flag
    fields = {name for option in options() for name in option.keys}
    settings = set(re.findall(r"`([a-z]+_[a-z_]+)`", GUIDE))
    assert {name for name in settings - fields if f"`{name}`" not in REFERENCE} <= {
        "cache_salt",
        "kv_transfer_params",
    }
