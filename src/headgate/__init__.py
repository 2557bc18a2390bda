"""Backpressure and zero loss for PySpark Structured Streaming.

::

    import headgate

    headgate.register(spark)                       # the sources and the listener, once per session
    gate = headgate.Gate("orders", interval="1 second", ledger="sqlite:///headgate.db")
    df = gate.read(spark, "kafka").option("kafka.bootstrap.servers", ...).load()
    query = gate.write(df, handler).option("checkpointLocation", "ckpt/orders").start()
"""

from headgate.errors import (
    BrokerError,
    DataLossError,
    HeadgateError,
    LedgerError,
    OptionError,
    SchemaError,
    SetupError,
    SourceError,
)
from headgate.gate import Batch, Gate, configure, register

__version__ = "0.1.0.dev0"

__all__ = [
    "Batch",
    "BrokerError",
    "DataLossError",
    "Gate",
    "HeadgateError",
    "LedgerError",
    "OptionError",
    "SchemaError",
    "SetupError",
    "SourceError",
    "configure",
    "register",
]
