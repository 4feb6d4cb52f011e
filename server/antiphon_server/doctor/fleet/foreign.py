"""Words that came from elsewhere, made fit to be shown: without keys, control characters, or great length."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

from antiphon_server.doctor.finding import Examination

LONGEST = 600
"""Characters: of a body, its beginning tells; answers that are compared are shorter."""
REDACTED = "[key]"
_SHORT = 8
"""A key of fewer characters is looked for as a word, so as not to eat parts of others."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""What terminals obey: colours and movements, titles and links, and single letters."""


def shown(text: str, keys: Iterable[str] = ()) -> str:
    """``keys``: that were sent, and that a server may have echoed."""
    plain = "".join(" " if _controls(one) else one for one in _ESCAPES.sub("", text))
    for key in sorted(set(keys), key=len, reverse=True):
        for form in dict.fromkeys((key, json.dumps(key)[1:-1], quote(key, safe=""))):
            pattern = re.escape(form) if len(key) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            plain = re.sub(pattern, REDACTED, plain)
    plain = " ".join(plain.split())
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 3] + "..."


def cleaned(examination: Examination, keys: Iterable[str]) -> Examination:
    """All that servers may have had a say in."""
    sent = list(keys)
    return replace(
        examination,
        findings=tuple(
            replace(
                one,
                subject=shown(one.subject, sent),
                what=shown(one.what, sent),
                remedy=shown(one.remedy, sent),
            )
            for one in examination.findings
        ),
        facts=tuple(
            replace(one, subject=shown(one.subject, sent), value=shown(one.value, sent))
            for one in examination.facts
        ),
    )


def _controls(one: str) -> bool:
    return unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
