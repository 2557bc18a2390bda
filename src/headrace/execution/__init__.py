"""A query's gate: its reader, its handler, and the listener that feeds its estimator."""

from headrace.execution.batch import Batch, Handler
from headrace.execution.gate import Gate
from headrace.execution.policy import OnFailure, isolate, retry
from headrace.execution.spark_session import RECOMMENDED_CONF, configure, register

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
