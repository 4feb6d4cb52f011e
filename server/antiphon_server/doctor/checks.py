"""Every check, by its word."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon_server.doctor.declared.command_line import UNREAD_FILE, UNREADABLE
from antiphon_server.doctor.declared.examine import RULES
from antiphon_server.doctor.finding import Check
from antiphon_server.doctor.fleet.checks import FLEET
from antiphon_server.doctor.machine.checks import MACHINE

DECLARED: tuple[Check, ...] = (UNREADABLE, UNREAD_FILE, *(rule.check for rule in RULES))
CHECKS: Mapping[str, Check] = {check.word: check for check in (*DECLARED, *MACHINE, *FLEET)}
"""In the order of the guide's table."""
