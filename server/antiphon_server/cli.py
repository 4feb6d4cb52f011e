"""The ``antiphon`` command. Each subcommand lives in the package it drives; imports of weight stay inside."""

from __future__ import annotations

import sys

try:
    import typer
except ImportError:
    sys.exit("antiphon: the command needs packages that are not installed: pip install 'antiphon[router]'")

from antiphon_server.advise.cli import advise
from antiphon_server.bench.cli import bench
from antiphon_server.bench.replay.cli import replay
from antiphon_server.demo.cli import demo
from antiphon_server.deploy.cli import hosts
from antiphon_server.doctor.cli import doctor
from antiphon_server.router.cli import check_config, router
from antiphon_server.router.gate.new_key import key
from antiphon_server.stack.cli import up
from antiphon_server.stack.engine_cli import engine

app = typer.Typer(
    name="antiphon",
    help="Exact two-way KV reuse for agents on disaggregated vLLM.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)
app.command()(up)
app.command()(engine)
app.command()(router)
app.command()(hosts)
app.command()(check_config)
app.command()(doctor)
app.command()(key)
app.command()(demo)
app.command()(replay)
app.add_typer(bench, name="bench")
app.command()(advise)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
