"""Engines without a model, for tests, faults and scale.

They speak vLLM's HTTP and keep real KV books, and their answers depend on the KV that was really used.
"""

from antiphon_server.simulator.answer import recomputed
from antiphon_server.simulator.app import app
from antiphon_server.simulator.ask import expected_ids
from antiphon_server.simulator.counters import Counters
from antiphon_server.simulator.engine import SimulatedEngine
from antiphon_server.simulator.expected import expected_text
from antiphon_server.simulator.faults import ConnectionDroppedError, Fault, Faults
from antiphon_server.simulator.job import Received
from antiphon_server.simulator.serve import serve
from antiphon_server.simulator.settings import Settings
from antiphon_server.simulator.tokens import Tokenizer
from antiphon_server.simulator.transfer import SimulatedCluster

__all__ = [
    "ConnectionDroppedError",
    "Counters",
    "Fault",
    "Faults",
    "Received",
    "Settings",
    "SimulatedCluster",
    "SimulatedEngine",
    "Tokenizer",
    "app",
    "expected_ids",
    "expected_text",
    "recomputed",
    "serve",
]
