"""A query's gate: its reader, its handler, and the listener that feeds its estimator."""

from typing import TYPE_CHECKING, Final

from headrace.core.system import lazy_names

if TYPE_CHECKING:
    from headrace.gate.execution.batch import Batch, Handler
    from headrace.gate.execution.gate import Gate
    from headrace.gate.execution.policy import OnFailure, isolate, retry
    from headrace.gate.execution.spark_session import RECOMMENDED_CONF, configure, register

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

_MODULES: Final = {
    "RECOMMENDED_CONF": "headrace.gate.execution.spark_session",
    "Batch": "headrace.gate.execution.batch",
    "Gate": "headrace.gate.execution.gate",
    "Handler": "headrace.gate.execution.batch",
    "OnFailure": "headrace.gate.execution.policy",
    "configure": "headrace.gate.execution.spark_session",
    "isolate": "headrace.gate.execution.policy",
    "register": "headrace.gate.execution.spark_session",
    "retry": "headrace.gate.execution.policy",
}
"""Names that need pyspark: a look at what waits in a source does without most of it."""

if not TYPE_CHECKING:  # or a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES, {})
