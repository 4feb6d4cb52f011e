"""How versions read."""

from __future__ import annotations

import pytest

from antiphon_server.versions import MINIMUM_NIXL, installed, numbers, text


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.32.0+cpu", (0, 32, 0)),
        ("1.22.0amzn4.0", (1, 22, 0)),
        ("1.3.2+cu12", (1, 3, 2)),
        ("v1.3.2rc1", (1, 3, 2)),
        ("1.3.2.post1", (1, 3, 2)),
        ("0.31", (0, 31)),
        ("main", ()),
        ("sha-5", ()),
        ("", ()),
    ],
)
def test_versions_read_alike_whatever_follows_their_numbers(version: str, expected: tuple[int, ...]) -> None:
    assert numbers(version) == expected


def test_version_and_its_text_say_the_same() -> None:
    assert numbers(text(MINIMUM_NIXL)) == MINIMUM_NIXL


def test_first_installed_distribution_counts() -> None:
    here = installed(["no-such-distribution", "pytest"])
    assert here == pytest.__version__
    assert installed(["no-such-distribution"]) is None
