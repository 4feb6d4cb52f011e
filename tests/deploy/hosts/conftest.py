"""Sites to render: the announcement's, a larger one, and one that this machine could run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_server.deploy.host_files import HostFiles, render_hosts
from antiphon_server.deploy.read import read
from deploy.hosts.sites import EXAMPLES, Sites


@pytest.fixture
def announcement() -> dict[str, Any]:
    """The example as written, to be changed."""
    written: dict[str, Any] = yaml.safe_load((EXAMPLES / "site.yaml").read_text())
    return written


@pytest.fixture
def fleet() -> dict[str, HostFiles]:
    """The larger example, rendered."""
    return {one.name: one for one in render_hosts(read(EXAMPLES / "site-fleet.yaml"))}


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)
