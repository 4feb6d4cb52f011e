from __future__ import annotations


def up() -> None:
    raise SystemExit("under construction")
