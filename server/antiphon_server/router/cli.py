from __future__ import annotations


def router() -> None:
    raise SystemExit("under construction")
