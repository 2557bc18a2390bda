"""Backpressure and zero loss for PySpark Structured Streaming.

::

    import headrace

    headrace.register(spark)                       # the sources and the listener, once per session
    gate = headrace.Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
    df = gate.read(spark, "kafka").option("kafka.bootstrap.servers", ...).load()
    query = gate.write(df, handler).option("checkpointLocation", "ckpt/orders").start()
"""

import importlib
from typing import TYPE_CHECKING, Any

from headrace.core.system import needs_extra
from headrace.errors import (
    BrokerError,
    DataLossError,
    HeadraceError,
    LedgerError,
    OptionError,
    SchemaError,
    SetupError,
    SinkAwayError,
    SourceError,
)

if TYPE_CHECKING:
    from headrace.decoding import SchemaRegistry, avro, decode, json, protobuf
    from headrace.execution import Batch, Gate, OnFailure, configure, isolate, register, retry
    from headrace.receivers.spark import Receivers
    from headrace.status.snapshot import GateSnapshot

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BrokerError",
    "DataLossError",
    "Gate",
    "GateSnapshot",
    "HeadraceError",
    "LedgerError",
    "OnFailure",
    "OptionError",
    "Receivers",
    "SchemaError",
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

_MODULES = {
    "GateSnapshot": "headrace.status.snapshot",
    "Receivers": "headrace.receivers.spark",
    **dict.fromkeys(("SchemaRegistry", "avro", "decode", "json", "protobuf"), "headrace.decoding"),
}


def __getattr__(name: str) -> Any:
    """Import modules that need pyspark on first use: the command line and tasks do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("spark", f"headrace.{name}"):
        module = importlib.import_module(_MODULES.get(name, "headrace.execution"))
    return getattr(module, name)
