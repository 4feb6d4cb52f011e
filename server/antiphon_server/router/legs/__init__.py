"""The bodies of a turn's legs on each surface, and what their replies hold. Pure.

A body is parsed one level deep: its values stay raw JSON, so a history of hundreds of kilobytes and the ids
of its prompt are copied, never turned into objects.
"""

from antiphon_server.router.legs.ask import Ask, MalformedBodyError, read_ask, salted
from antiphon_server.router.legs.bodies import Filled, append_body, decode_body, prefill_body, read_filled
from antiphon_server.router.legs.form import Body, Form, Surface
from antiphon_server.router.legs.opening import Failure, begun, failure
from antiphon_server.router.legs.strip import CutOffError, check_whole, needs_stripping, strip, strip_whole
from antiphon_server.router.legs.surfaces import FORMS

__all__ = [
    "FORMS",
    "Ask",
    "Body",
    "CutOffError",
    "Failure",
    "Filled",
    "Form",
    "MalformedBodyError",
    "Surface",
    "append_body",
    "begun",
    "check_whole",
    "decode_body",
    "failure",
    "needs_stripping",
    "prefill_body",
    "read_ask",
    "read_filled",
    "salted",
    "strip",
    "strip_whole",
]
