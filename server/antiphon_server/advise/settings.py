"""Which settings follow from the traffic, and from what. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.advise.fleet import CONVERSATIONS, Fleet
from antiphon_server.advise.interconnect import Interconnect
from antiphon_server.advise.percent import percent
from antiphon_server.advise.retention import Option, Retention

ENOUGH = 0.95
"""Of what the longest ``keep`` finds, what a shorter one must find to be preferred."""
LEASE = 60.0
"""Seconds that engines hold a lease for."""
_BLOCK = 64
_DEFAULT_KEEP, _DEFAULT_SHARE, _DEFAULT_SLOWDOWN = 480.0, 0.5, 1.25
_SHARES = (0.1, 0.8)
_SLOWDOWNS = (1.05, 1.5)
USABLE = 0.05
"""Of the tokens that repeat, those worth fetching, below which the path ``reuse`` is left out."""


@dataclass(frozen=True, slots=True)
class Setting:
    """``name``: of the router's setting, or the engine's. ``because``: what it follows from, for people."""

    name: str
    value: str
    because: str


@dataclass(frozen=True, slots=True)
class Settings:
    """``router``: for its YAML file. ``engine``: for ``kv_connector_extra_config`` of prefill and decode.
    ``fleet``: what so much traffic takes."""

    router: tuple[Setting, ...]
    engine: tuple[Setting, ...]
    fleet: str | None = None


OFF = Settings((Setting("paths", "[cold]", "plain prefill/decode; nothing is kept"),), ())


def best_keep(options: Sequence[Option], room: float | None) -> Option:
    """The shortest that finds nearly all that the longest does and is not larger than ``room``: tokens that
    an active conversation may pin on average, None: no limit. Shorter than a lease only for want of
    room."""
    fitting = [option for option in options if room is None or option.pinned <= room] or [options[0]]
    fitting = [option for option in fitting if option.keep >= LEASE] or fitting
    most = max(option.found for option in fitting)
    return next(option for option in fitting if option.found >= ENOUGH * most)


def settings(
    link: Interconnect,
    held: Retention,
    *,
    capacity: int | None,
    conversations: float | None,
    decodes: int,
    fleet: Fleet | None,
    sure: bool = True,
) -> Settings:
    """``capacity``: tokens of KV of one decode engine, of which there are ``decodes``. ``conversations``:
    active at once on all of them; None: unknown. ``sure``: the log tells enough to say what is pinned."""
    option = held.chosen
    router = [_paths(link)]
    if sure:
        router += [_keep(option, held), _share(option, held, capacity, conversations, decodes)]
        router.append(_slowdown(fleet, conversations, decodes))
    else:
        router += _unsure(option, held)
    engine = []
    if link.break_even is not None:
        threshold = max(_BLOCK, math.ceil(link.break_even / _BLOCK) * _BLOCK)
        engine.append(
            Setting(
                "kv_recompute_threshold",
                str(threshold),
                f"fetching is no slower than computing from {link.break_even:,} tokens on",
            )
        )
    return Settings(tuple(router), tuple(engine), _fleet(fleet))


def _paths(link: Interconnect) -> Setting:
    if link.above < USABLE:
        why = f"{percent(link.above)} of what repeats is long enough to be fetched; appends move nothing"
        return Setting("paths", "[cold, append]", why)
    return Setting("paths", "[cold, reuse, append]", "each turn takes the one expected to be fastest")


def _unsure(option: Option, held: Retention) -> list[Setting]:
    """Where the log does not tell enough to say what is pinned."""
    why = "the default: the log does not tell enough for another value"
    keep = (
        f"finds {percent(option.found)} of the tokens that repeat and whose gap is known"
        if held.known
        else why
    )
    return [
        Setting("keep", f"{option.keep:.0f}", keep),
        Setting("keep_share", f"{_DEFAULT_SHARE}", why),
        Setting("append_slowdown", f"{_DEFAULT_SLOWDOWN}", why),
    ]


def _keep(option: Option, held: Retention) -> Setting:
    if not held.known:
        return Setting("keep", f"{_DEFAULT_KEEP:.0f}", "the default: the log tells no gaps")
    longest = held.options[-1]
    limit = "as long as decode's memory allows; " if option.found < ENOUGH * longest.found else ""
    why = (
        f"{limit}finds {percent(option.found)} of the tokens that repeat; {longest.keep:.0f} s would find "
        f"{percent(longest.found)} and pin {longest.pinned / max(option.pinned, 1):.1f} times as much"
    )
    return Setting("keep", f"{option.keep:.0f}", why)


def _share(
    option: Option, held: Retention, capacity: int | None, conversations: float | None, decodes: int
) -> Setting:
    if not held.known:
        return Setting("keep_share", f"{_DEFAULT_SHARE}", "the default: the log tells no gaps")
    per = f"an active conversation pins {option.pinned:,.0f} tokens on average"
    if not capacity:
        return Setting("keep_share", f"{_DEFAULT_SHARE}", f"the default: {per}; pass --decode-kv-tokens")
    fit = int(capacity * _DEFAULT_SHARE / max(option.pinned, 1.0))
    if conversations is None:
        why = f"the default: {per}, so one decode engine keeps about {fit:,}; pass --conversations"
        return Setting("keep_share", f"{_DEFAULT_SHARE}", why)
    # Half as much again: what is pinned moves around its mean.
    wanted = 1.5 * option.pinned * conversations / (capacity * decodes)
    share = min(max(math.ceil(wanted * 20) / 20, _SHARES[0]), _SHARES[1])
    why = (
        f"{per}; {conversations:,.0f} at once on {decodes} decode engine{'s' if decodes > 1 else ''} of "
        f"{capacity:,} tokens, and half as much again for peaks: {share * capacity:,.0f} tokens on each"
    )
    return Setting("keep_share", f"{share:.2f}".rstrip("0"), why)


def _slowdown(fleet: Fleet | None, conversations: float | None, decodes: int) -> Setting:
    if fleet is None:
        return Setting("append_slowdown", f"{_DEFAULT_SLOWDOWN}", "the default: the log tells no times")
    if conversations is None:
        each = fleet.appending / CONVERSATIONS * 10
        why = f"the default: ten active conversations' appends take {each:.1%} of a decode engine's time"
        return Setting("append_slowdown", f"{_DEFAULT_SLOWDOWN}", why)
    share = fleet.appending / CONVERSATIONS * conversations / decodes
    asked = 1 / (1 - share) if share < 1 else math.inf
    value = min(max(math.ceil(asked * 20 - 1e-9) / 20, _SLOWDOWNS[0]), _SLOWDOWNS[1])
    why = f"appends of {conversations:,.0f} active conversations take {share:.1%} of a decode engine's time"
    if asked > value:
        why += "; the rest goes by prefill"
    return Setting("append_slowdown", f"{value:.2f}".rstrip("0"), why)


def _fleet(fleet: Fleet | None) -> str | None:
    if fleet is None:
        return None
    said = (
        f"{CONVERSATIONS} active conversations keep {fleet.prefill_on_cold:.1f} prefill engines busy if "
        f"prefill's caches are cold ({fleet.prefill_off_cold:.1f} without reuse), "
        f"{fleet.prefill_on_warm:.1f} if they are warm ({fleet.prefill_off_warm:.1f})"
    )
    if fleet.decode_on is not None and fleet.decode_off is not None:
        said += (
            f"; their KV fills {fleet.decode_on:.1f} decode engines if all of it is kept so long "
            f"({fleet.decode_off:.1f} without)"
        )
        prefill, decode = fleet.prefill_on_cold, fleet.decode_on
        if min(prefill, decode) > 0:
            said += f". By that, prefill to decode about {_ratio(prefill, decode)}"
    return said


def _ratio(first: float, second: float) -> str:
    if first >= second:
        return f"{first / second:.1f} : 1"
    return f"1 : {second / first:.1f}"
