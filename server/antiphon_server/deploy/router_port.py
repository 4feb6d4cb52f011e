"""The port of a router beside engines: none of theirs."""

from __future__ import annotations

from antiphon_server.deploy.site import ROUTER_PORT, Host, Site
from antiphon_server.stack.ports import EnginePorts, PortError, allocate
from antiphon_server.stack.validate import Fault


def port_faults(site: Site) -> list[Fault]:
    """Of engines that find no ports, and of a router that would listen where an engine beside it does."""
    faults: list[Fault] = []
    for name, host in site.hosts.items():
        try:
            taken = _taken(site, host)
        except PortError:
            told = f"{host.engines} engines of {site.engines.data_parallel} ranks"
            faults.append(Fault(f"hosts.{name}", told, "give it fewer: there are not enough ports for them"))
            continue
        port = str(site.router.get("port", ROUTER_PORT))
        if host.router and port in taken:
            remedy = f"give another, such as {ROUTER_PORT}: {taken[port]} on {name} listens there"
            faults.append(Fault("router.port", port, remedy))
    return faults


def _taken(site: Site, host: Host) -> dict[str, str]:
    """What listens at each port of the engines there."""
    ports = allocate(site.stack(host), lambda port: True)
    named = {f"prefill-{index}": engine for index, engine in enumerate(ports.prefill)}
    named |= {f"decode-{index}": engine for index, engine in enumerate(ports.decode)}
    return {port: what for name, own in named.items() for port, what in _of(site, name, own)}


def _of(site: Site, name: str, own: EnginePorts) -> list[tuple[str, str]]:
    ranks = range(own.side_channel, own.side_channel + site.engines.data_parallel)
    return [(str(own.http), name), *((str(port), f"the side channel of {name}") for port in ranks)]
