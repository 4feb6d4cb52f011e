"""The policies that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Path = Literal["cold", "reuse", "append"]


@dataclass(frozen=True, slots=True)
class Policy:
    """``paths``: that the router may take. ``proxy``: not our router but the way of the reference proxy:
    round robin, all that was kept is pulled, and nothing is given up before its lease ends. ``bounded``:
    appends keep to what they may cost other streams."""

    name: str
    title: str
    paths: tuple[Path, ...]
    proxy: bool = False
    bounded: bool = True


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("cold", "plain P/D: all is computed", ("cold",)),
        Policy("proxy", "reuse always, round robin, as the reference proxy does", ("reuse",), proxy=True),
        Policy("off", "plain P/D, round robin, as the reference proxy does", ("cold",), proxy=True),
        Policy("reuse", "reuse always, placed and kept by the router", ("reuse",)),
        Policy("append", "straight to decode always, whatever it costs others", ("append",), bounded=False),
        Policy("auto", "by expected TTFT: append, reuse or cold", ("cold", "reuse", "append")),
    )
}


def policies(names: list[str]) -> tuple[Policy, ...]:
    """By name.

    Raises:
        ValueError: there is none of that name.
    """
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise ValueError(f"--policy {unknown[0]!r} is no policy: choose from {', '.join(POLICIES)}")
    return tuple(POLICIES[name] for name in dict.fromkeys(names))
