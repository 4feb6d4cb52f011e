"""Where engines meet: addresses and ports."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon_server.doctor.declared.declared import HIDDEN, Declared, Engine
from antiphon_server.doctor.declared.rule import Hit, rule
from antiphon_server.doctor.finding import Severity
from antiphon_server.stack.ports import SIDE_CHANNEL_BASE
from antiphon_server.stack.reach import numeric, routable


def spread(fleet: Declared) -> bool:
    """The engines do not all share one loopback address."""
    return len({engine.box.network for engine in fleet.engines}) > 1


@rule(
    "side-channel-host",
    Severity.ERROR,
    "VLLM_NIXL_SIDE_CHANNEL_HOST is an address that the other hosts reach",
    "NIXL agents meet there before each first transfer. With loopback they find nobody, or themselves.",
    thing="VLLM_NIXL_SIDE_CHANNEL_HOST",
)
def side_channel_host(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        host = engine.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST")
        if host is not None and host.startswith(HIDDEN):
            continue
        remedy = "give this host's own address (antiphon engine --address, or auto)"
        if (spread(fleet) or engine.fabric) and (host is None or not routable(host)):
            what = (
                f"VLLM_NIXL_SIDE_CHANNEL_HOST is {host or 'not set, so localhost'}, engines on several hosts"
            )
            yield Hit(engine.subject, what, remedy)
        elif host is not None and host != "localhost" and not numeric(host):
            what = f"VLLM_NIXL_SIDE_CHANNEL_HOST is the name {host!r}, which cannot be bound"
            yield Hit(engine.subject, what, remedy)


def side_channel_ports(engine: Engine) -> range:
    """One for each data-parallel rank, from the configured one on; empty where it is not known."""
    given = engine.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", str(SIDE_CHANNEL_BASE))
    first = int(given) if given.isdigit() else 0
    return range(first, first + engine.flags.count("data-parallel-size", 1)) if first else range(0)


@rule(
    "side-channel-port",
    Severity.ERROR,
    "engines of one host have side-channel ports of their own, one for each data-parallel rank",
    "The second engine does not start, or its peers shake hands with the first.",
    thing="VLLM_NIXL_SIDE_CHANNEL_PORT",
)
def side_channel_port(fleet: Declared) -> Iterator[Hit]:
    taken: dict[tuple[str, int], Engine] = {}
    for engine in fleet.engines:
        for port in side_channel_ports(engine):
            other = taken.setdefault((engine.box.network, port), engine)
            if other is not engine:
                what = f"side-channel port {port} is also that of {other.subject}"
                width = engine.flags.count("data-parallel-size", 1)
                steps = f", at least {width} apart" if width > 1 else ""
                yield Hit(engine.subject, what, f"set VLLM_NIXL_SIDE_CHANNEL_PORT to another one{steps}")
                break


@rule(
    "port",
    Severity.ERROR,
    "engines of one host listen on ports of their own",
    "The second one does not start.",
    thing="--port",
)
def port(fleet: Declared) -> Iterator[Hit]:
    channels = {(e.box.network, number): e for e in fleet.engines for number in side_channel_ports(e)}
    taken: dict[tuple[str, int], Engine] = {}
    for engine in fleet.engines:
        number = engine.flags.count("port", 8000)
        other = taken.setdefault((engine.box.network, number), engine)
        if other is not engine:
            yield Hit(
                engine.subject, f"port {number} is also that of {other.subject}", "give it another --port"
            )
        elif met := channels.get((engine.box.network, number)):
            what = f"port {number} is also a side-channel port of {met.subject}"
            yield Hit(engine.subject, what, "give it another --port")


RULES = (side_channel_host, side_channel_port, port)
