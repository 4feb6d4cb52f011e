"""From where an address can be reached, by what it is written as."""

from __future__ import annotations

import ipaddress


def numeric(address: str) -> bool:
    """It is a number, so a socket can be bound to it."""
    return _parsed(address.strip("[]")) is not None


def loopback(address: str) -> bool:
    """Whether only this node reaches a numeric address."""
    parsed = _parsed(address)
    return parsed is not None and parsed.is_loopback


def unspecified(host: str) -> bool:
    """Whether it stands for all addresses of this node."""
    parsed = _parsed(host)
    return parsed is not None and parsed.is_unspecified


def routable(address: str) -> bool:
    """Other hosts may reach it. A name is taken to be: the other hosts resolve it."""
    if address == "localhost":
        return False
    parsed = _parsed(address.strip("[]"))
    return parsed is None or not (parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None
