"""A query's gate: its reader, its handler, and the listener that feeds its estimator."""

from headrace.gate.batch import Batch, Handler
from headrace.gate.gate import Gate
from headrace.gate.policy import OnFailure, isolate, retry
from headrace.gate.registration import RECOMMENDED_CONF, configure, register

__all__ = [
    "RECOMMENDED_CONF",
    "Batch",
    "Gate",
    "Handler",
    "OnFailure",
    "configure",
    "isolate",
    "register",
    "retry",
]
