"""The bodies of a turn's legs on each surface, and what their replies hold. Pure.

A body is parsed one level deep: its values stay raw JSON, so a history of hundreds of kilobytes and the ids
of its prompt are copied, never turned into objects.
"""

from antiphon_server.router.legs.ask import Ask, MalformedBodyError, read_ask, salted
from antiphon_server.router.legs.bodies import Filled, append_body, decode_body, prefill_body, read_filled
from antiphon_server.router.legs.form import Body, Form, Surface
from antiphon_server.router.legs.opening import Failure, begun, failure
from antiphon_server.router.legs.strip import is_object, needs_stripping, strip
from antiphon_server.router.legs.surfaces import FORMS

__all__ = [
    "FORMS",
    "Ask",
    "Body",
    "Failure",
    "Filled",
    "Form",
    "MalformedBodyError",
    "Surface",
    "append_body",
    "begun",
    "decode_body",
    "failure",
    "is_object",
    "needs_stripping",
    "prefill_body",
    "read_ask",
    "read_filled",
    "salted",
    "strip",
]
