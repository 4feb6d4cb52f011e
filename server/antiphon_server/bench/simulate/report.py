"""What a comparison of policies came to, with all that it was simulated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.run import Result

LABEL = "SIMULATION: the router's own decisions over modelled engines, on counted time. Nothing was measured."


@dataclass(frozen=True, slots=True)
class Report:
    """``traffic``: what was served. ``notes``: what of it was left out, drawn or assumed. ``settings``: the
    router's, where they differ from its defaults."""

    label: str
    model: RateModel
    fleet: Fleet
    traffic: str
    notes: tuple[str, ...]
    seed: int
    settings: Mapping[str, object]
    results: tuple[Result, ...]

    def without_samples(self) -> Report:
        """The same, small enough for a file."""
        return replace(self, results=tuple(replace(result, samples=()) for result in self.results))

    def conditions(self) -> tuple[str, ...]:
        """Lines for captions."""
        fleet = self.fleet
        cache = "on" if fleet.prefill_cache else "off"
        changed = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return (
            LABEL,
            f"{self.traffic} · {fleet.prefills} prefill + {fleet.decodes} decode, "
            f"{fleet.prefill_tokens / 1e6:g}M and {fleet.decode_tokens / 1e6:g}M tokens of KV each, "
            f"prefill's own prefix cache {cache} · seed {self.seed}" + (f" · {changed}" if changed else ""),
            f"rates: {self.model.name}, error at fitted figures up to {self.model.worst_error:.0%}",
        )
