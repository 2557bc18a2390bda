"""A query's gate: its reader, its handler, and the listener that feeds its estimator."""

from typing import TYPE_CHECKING, Final

from headrace.core.system import lazy_names

if TYPE_CHECKING:
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

_MODULES: Final = {
    "RECOMMENDED_CONF": "headrace.execution.spark_session",
    "Batch": "headrace.execution.batch",
    "Gate": "headrace.execution.gate",
    "Handler": "headrace.execution.batch",
    "OnFailure": "headrace.execution.policy",
    "configure": "headrace.execution.spark_session",
    "isolate": "headrace.execution.policy",
    "register": "headrace.execution.spark_session",
    "retry": "headrace.execution.policy",
}
"""Names that need pyspark: a look at what waits in a source does without most of it."""

if not TYPE_CHECKING:  # or a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES, {})
