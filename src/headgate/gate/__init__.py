"""A query's gate: its reader, its handler, and the listener that feeds its estimator."""

from headgate.gate.batch import Batch, Handler
from headgate.gate.gate import Gate
from headgate.gate.policy import OnFailure, isolate, retry
from headgate.gate.registration import RECOMMENDED_CONF, configure, register

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
