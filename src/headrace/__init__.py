"""Backpressure and zero loss for PySpark Structured Streaming.

::

    import headrace

    headrace.register(spark)                       # the sources and the listener, once per session
    gate = headrace.Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
    df = gate.read(spark, "kafka").option("kafka.bootstrap.servers", ...).load()
    query = gate.write(df, handler).option("checkpointLocation", "ckpt/orders").start()
"""

from headrace.core.system import door

__version__ = "0.1.0"

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.{name}"})
