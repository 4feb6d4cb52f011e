"""Every format of the page on traffic logs can be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_server.bench.replay.history import History
from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Size
from antiphon_server.bench.replay.scripts import Choice, scripts
from antiphon_server.bench.timing import Answer
from antiphon_server.traces.read import FORMATS, read

PAGE = (Path(__file__).parents[3] / "docs" / "traces.md").read_text()
RULER = Ruler()


@pytest.mark.parametrize("name", FORMATS)
def test_a_formats_example_is_sent(name: str, tmp_path: Path) -> None:
    path = tmp_path / "example.json"
    path.write_text(PAGE.partition(f"\n## `{name}`\n")[2].partition("```json\n")[2].partition("```")[0])
    trace = read([path])
    (script, *_) = scripts(trace, size=Size(), pace=Pace(), ruler=RULER, choice=Choice())
    calls = trace.conversations[0].calls
    assert (len(script.turns), script.cut) == (len(calls), 0)
    history = History(RULER)
    for turn, call in zip(script.turns, calls, strict=True):
        messages = history.begin(turn)
        assert messages[-1]["role"] in ("user", "tool")
        # Text as it was recorded; else words of the recorded length.
        assert RULER.prompt(messages) == pytest.approx(call.prompt, abs=16, rel=0.02)
        assert turn.answer == max(1, call.answer)
        history.end(Answer((), "a" * 4 * call.answer))
