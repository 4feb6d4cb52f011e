from __future__ import annotations


def demo() -> None:
    raise SystemExit("under construction")
