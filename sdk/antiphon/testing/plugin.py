"""Fixtures for pytest. A project adopts them in its top ``conftest.py``::

    pytest_plugins = ["antiphon.testing.plugin"]

They do not load by themselves (there is no ``pytest11`` entry point): most who install the SDK test nothing
with it, and would pay its import, and meet its names, in every test run of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from antiphon.testing import FakeRouter, mocked

if TYPE_CHECKING:
    import respx


@pytest.fixture
def antiphon_router() -> Iterator[FakeRouter]:
    """A :class:`~antiphon.testing.FakeRouter` that listens while the test runs."""
    with FakeRouter() as router:
        yield router


@pytest.fixture
def antiphon_mock(request: pytest.FixtureRequest) -> Iterator[respx.MockRouter]:
    """:func:`~antiphon.testing.mocked` while the test runs. Options as with respx' own fixture:
    ``@pytest.mark.respx(base_url=...)``. Routes need not all be called unless it says so."""
    marker = request.node.get_closest_marker("respx")
    with mocked(**{"assert_all_called": False, **(marker.kwargs if marker else {})}) as router:
        yield router
