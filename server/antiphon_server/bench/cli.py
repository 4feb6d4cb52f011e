"""``antiphon bench``: a group; each command lives in its own package."""

from __future__ import annotations

import typer

from antiphon_server.bench.overhead.cli import router
from antiphon_server.bench.simulate.cli import simulate
from antiphon_server.bench.sweep.cli import sweep

bench = typer.Typer(help="Measure a fleet, a router, or a simulated one.", no_args_is_help=True)
bench.command()(sweep)
bench.command()(router)
bench.command()(simulate)
