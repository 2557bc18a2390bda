"""Backpressure and zero loss for PySpark Structured Streaming.

::

    import headrace

    headrace.register(spark)                       # the sources and the listener, once per session
    gate = headrace.Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
    df = gate.read(spark, "kafka").option("kafka.bootstrap.servers", ...).load()
    query = gate.write(df, handler).option("checkpointLocation", "ckpt/orders").start()
"""

from typing import TYPE_CHECKING, Final

from headrace.core.ranges import OffsetRange
from headrace.core.system import lazy_names
from headrace.errors import (
    BatchSplitError,
    BrokerError,
    DataLossError,
    GateInUseError,
    HeadraceError,
    LedgerError,
    LedgerSchemaError,
    MachineryError,
    OptionError,
    RegistryError,
    SetupError,
    SinkAwayError,
    SourceError,
)

if TYPE_CHECKING:
    from headrace.decoding import SchemaRegistry, avro, decode, json, protobuf
    from headrace.gate.execution import Batch, Gate, OnFailure, configure, isolate, register, retry
    from headrace.journal.receivers.spark import Receivers
    from headrace.operate.status.snapshot import GateSnapshot

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchSplitError",
    "BrokerError",
    "DataLossError",
    "Gate",
    "GateInUseError",
    "GateSnapshot",
    "HeadraceError",
    "LedgerError",
    "LedgerSchemaError",
    "MachineryError",
    "OffsetRange",
    "OnFailure",
    "OptionError",
    "Receivers",
    "RegistryError",
    "SchemaRegistry",
    "SetupError",
    "SinkAwayError",
    "SourceError",
    "avro",
    "configure",
    "decode",
    "isolate",
    "json",
    "protobuf",
    "register",
    "retry",
]

_MODULES: Final = {
    "Batch": "headrace.gate.execution.batch",
    "Gate": "headrace.gate.execution.gate",
    "GateSnapshot": "headrace.operate.status.snapshot",
    "OnFailure": "headrace.gate.execution.policy",
    "Receivers": "headrace.journal.receivers.spark.spark_receivers",
    "SchemaRegistry": "headrace.decoding.registry",
    "avro": "headrace.decoding.avro_format",
    "configure": "headrace.gate.execution.spark_session",
    "decode": "headrace.decoding.decode",
    "isolate": "headrace.gate.execution.policy",
    "json": "headrace.decoding.json_format",
    "protobuf": "headrace.decoding.protobuf_format",
    "register": "headrace.gate.execution.spark_session",
    "retry": "headrace.gate.execution.policy",
}
"""Names that need pyspark: the command line and tasks do without."""

if not TYPE_CHECKING:  # or a type checker would accept any name
    __getattr__ = lazy_names("headrace", _MODULES, {"spark": "headrace.{name}"})


def __dir__() -> list[str]:
    """Return the public names, also those that are imported on first use."""
    return ["__all__", "__doc__", "__version__", *__all__]
