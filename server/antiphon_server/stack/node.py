"""Where this machine is: the address at which engines on other machines reach it, its interface, its CPUs."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from antiphon_server.stack.command import LOOPBACK
from antiphon_server.stack.ports import EnginePorts, bindable
from antiphon_server.stack.reach import loopback, routable, unspecified
from antiphon_server.stack.settings import StackSettings
from antiphon_server.stack.validate import Fault, ValidationError

AUTO = "auto"
ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Reserved for documentation: nobody is there, and nothing is sent. Their route is the default one."""
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def placed(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> StackSettings:
    """The settings with a number for their address, and the network interface that has it.

    ``UCX_NET_DEVICES`` in the environment names the interface instead.

    Raises:
        ValidationError: there is no such address, or ``auto`` finds none or several.
    """
    if settings.address is None:
        return settings
    address = own_address() if settings.address == AUTO else resolved(settings.address)
    return replace(settings, address=address, interface=environ.get("UCX_NET_DEVICES") or interface(address))


def resolved(name: str) -> str:
    """The number of a name; IPv4 where there is one. ZeroMQ, where NIXL agents meet, binds no names.

    Raises:
        ValidationError: it has none.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        remedy = f"give this host's address as a number, or {AUTO}: the name does not resolve ({error})"
        raise ValidationError([Fault("address", name, remedy)]) from None
    numbers = {family: str(where[0]) for family, *_, where in reversed(found)}
    return numbers.get(socket.AF_INET) or next(iter(numbers.values()))


def own_address() -> str:
    """The address that this host's default route leaves from; without a route, the only one there is.

    Raises:
        ValidationError: none or several.
    """
    for elsewhere in ELSEWHERE:
        if leaving := _leaving_for(elsewhere):
            return leaving
    candidates = sorted(address for address in addresses() if routable(address))
    if len(candidates) == 1:
        return candidates[0]
    found = f"it has {', '.join(candidates)}" if candidates else "it has none but loopback"
    remedy = f"no default route tells this host's address, and {found}: give the one others reach"
    raise ValidationError([Fault("address", AUTO, remedy)])


def addresses() -> dict[str, str]:
    """The addresses of this host, each with its interface."""
    return {
        one.address.partition("%")[0]: name
        for name, ones in psutil.net_if_addrs().items()
        for one in ones
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }


def interface(address: str) -> str | None:
    """The interface that has the address; None when it is not this host's."""
    return addresses().get(address)


def available(settings: StackSettings, ports: EnginePorts) -> None:
    """Pass when an engine may listen at its ports, and where NIXL agents meet.

    Raises:
        ValidationError: the address is not this host's, or something listens there.
    """
    address = settings.address or LOOPBACK
    host = resolved(settings.engine_host or address)
    faults = []
    for at, name in {host: "host", address: "address"}.items():
        if at not in addresses() and not loopback(at) and not unspecified(at):
            remedy = (
                f"not an address of this host, which has {', '.join(sorted(addresses()))}: give one of them"
            )
            faults.append(Fault(name, at, remedy))
    if not faults:
        taken = "something listens there: stop it, or give another"
        ranks = range(ports.side_channel, ports.side_channel + settings.data_parallel)
        wanted = [("port", ports.http, host), *(("side_channel_port", port, address) for port in ranks)]
        faults = [
            Fault(name, f"{port} on {at}", taken) for name, port, at in wanted if not bindable(port, at)
        ]
    if faults:
        raise ValidationError(faults)


def confined(settings: StackSettings) -> str | None:
    """What to mind where an engine that others are to call meets them where they cannot."""
    host = settings.engine_host or settings.address or LOOPBACK
    if loopback(settings.address or LOOPBACK) and not loopback(host):
        return f"address = {LOOPBACK}: engines on other hosts cannot meet this one there; give --address auto"
    return None


def cores(limit: Path = CPU_MAX) -> int:
    """CPUs that this process may use: those it may run on, within what its container is granted."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return allowed
    return min(allowed, max(1, math.ceil(int(quota) / int(period)))) if quota.isdecimal() else allowed


def _leaving_for(elsewhere: str) -> str | None:
    family = socket.AF_INET6 if ":" in elsewhere else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return None
    return address if routable(address) else None
