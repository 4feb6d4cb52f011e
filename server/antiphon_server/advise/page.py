"""The report: one HTML file that needs nothing else, no network and no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from antiphon_server.advise import answers
from antiphon_server.advise.advice import Advice
from antiphon_server.advise.answers import Answer, Table
from antiphon_server.advise.copying import engine_json, environment, router_yaml
from antiphon_server.advise.percent import percent
from antiphon_server.advise.pictures import pictures

_TITLE = "Two-way KV reuse for your traffic"


def page(advice: Advice) -> str:
    """All of it."""
    drawn = pictures(advice)
    style = files("antiphon_server.advise").joinpath("page.css").read_text("utf-8")
    parts = [_verdict(advice), _figures(advice), _pictures([*drawn["tokens"], _at_a_glance(advice)])]
    parts += [
        _section(f"{number}. {answer.question}", _answer(answer, drawn[answer.name]))
        for number, answer in enumerate(answers.answers(advice), 1)
    ]
    parts += [
        _section("Settings", _settings(advice)),
        _section("How this was found", _method(advice)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_TITLE}</title><style>{style}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _verdict(advice: Advice) -> str:
    judged = advice.judgement
    cautions = "".join(
        f"<li><b>{escape(caution.cause)}:</b> {escape(caution.text)}</li>" for caution in judged.cautions
    )
    return (
        f"<header><p>{_TITLE} · {escape(answers.traffic(advice))}</p>"
        f'<div class="verdict {judged.verdict.name.lower()}"><h1>{escape(judged.verdict.capitalize())}</h1>'
        + _paragraphs(reason.text for reason in judged.reasons)
        + (f"<ul>{cautions}</ul>" if cautions else "")
        + "</div></header>"
    )


def _figures(advice: Advice) -> str:
    cold, warm, held = advice.cold, advice.warm, advice.retention
    shown = [
        ("repeats", percent(advice.repetition.share), "of later prompts' tokens"),
        (
            "pays from",
            "never" if advice.interconnect.break_even is None else f"{advice.interconnect.break_even:,}",
            "tokens of prefix",
        ),
        (
            "gone too early",
            percent(held.gone) if held.known else "not known",
            f"if kept for {answers.seconds(held.chosen.keep)}",
        ),
        ("mean TTFT, cache cold", _change(cold.gain), _from_to(cold.off.mean, cold.on.mean)),
        ("mean TTFT, cache warm", _change(warm.gain), _from_to(warm.off.mean, warm.on.mean)),
    ]
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(unit)}</small></dd></div>"
        for name, value, unit in shown
    )
    return f'<dl class="figures">{cells}</dl>'


def _at_a_glance(advice: Advice) -> str:
    """Beside the first picture; reasons come with the settings below."""
    lines = escape(router_yaml(advice.settings))
    return f'<div class="glance"><p class="small">Settings that follow</p><pre>{lines}</pre></div>'


def _change(gain: float) -> str:
    """A minus sign, not a hyphen."""
    return f"{-gain:+.0%}".replace("-", "\N{MINUS SIGN}") if round(gain, 2) else "unchanged"


def _from_to(before: float, after: float) -> str:
    return f"{answers.seconds(before)} to {answers.seconds(after)}"


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inside}</section>"


def _answer(answer: Answer, drawn: list[str]) -> str:
    table = [_table(answer.table)] if answer.table is not None else []
    if len(drawn) == 1:
        return _paragraphs(answer.text) + _pictures([*drawn, *table])
    return _paragraphs(answer.text) + _pictures(drawn) + "".join(table)


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def _pictures(drawn: list[str]) -> str:
    return f'<div class="pictures">{"".join(drawn)}</div>' if drawn else ""


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _settings(advice: Advice) -> str:
    found = advice.settings
    rows = "".join(
        f"<tr><td>{escape(s.name)}</td><td>{escape(s.value)}</td><td>{escape(s.because)}</td></tr>"
        for s in (*found.router, *found.engine)
    )
    parts = [f'<table class="settings">{rows}</table>']
    if found.fleet:
        parts.append(_paragraphs([f"{found.fleet}."]))
    parts += [
        '<p class="small">For the router: a file for <code>antiphon router --config</code>, or its '
        "environment.</p>",
        f"<pre>{escape(router_yaml(found))}</pre><pre>{escape(environment(found))}</pre>",
    ]
    if found.engine:
        parts += [
            '<p class="small">For prefill and decode engines, in <code>--kv-transfer-config</code>:</p>',
            f"<pre>{escape(engine_json(found))}</pre>",
        ]
    return "".join(parts)


def _method(advice: Advice) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(said)}</td></tr>" for name, said in advice.hardware.sources
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in advice.source.notes)
    return (
        _paragraphs(answers.method(advice))
        + f'<table class="sources">{rows}</table>'
        + (f"<p>Of the log:</p><ul>{notes}</ul>" if notes else "")
    )
