"""What a Spark session needs once: the sources, and the listener that feeds the gates."""

from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from headgate.gate.ledgers import ledger_of, shared_ledger
from headgate.gate.listener import GateListener
from headgate.kafka.source import KafkaSource

_registered: Final[WeakKeyDictionary[SparkSession, str | None]] = WeakKeyDictionary()


def register(spark: SparkSession, *, ledger: str | None = None) -> None:
    """Make the sources known to a session, and listen to its queries. Again is harmless.

    Args:
        spark: the session.
        ledger: the ledger of gates that are used by options alone (``headgate.gate`` and
            ``headgate.ledger`` on the bare format), where no `Gate` of this program names it. The
            same URL as in the option.

    Raises:
        LedgerError: ``ledger`` cannot be opened.
    """
    if ledger is not None:
        shared_ledger(ledger)
    if spark in _registered:
        if ledger is not None:
            _registered[spark] = ledger
        return
    parallelism = spark.sparkContext.defaultParallelism
    # A class of its own for this session: Spark sends the class, and so the number, to its planner.
    source = type("KafkaSource", (KafkaSource,), {"parallelism": parallelism})
    spark.dataSource.register(source)
    _registered[spark] = ledger
    spark.streams.addListener(GateListener(lambda gate: ledger_of(gate, _registered.get(spark))))


RECOMMENDED_CONF: Final = {
    # Between the JVM and its Python workers TCP waits on delayed acknowledgements: 40 ms a task.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings that a session should be built with; `headgate doctor` checks them."""


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set what makes small batches fast, on a session's builder.

    >>> import headgate
    >>> from pyspark.sql import SparkSession
    >>> builder = headgate.configure(SparkSession.builder.appName("orders"))
    """
    for name, value in RECOMMENDED_CONF.items():
        builder = builder.config(name, value)
    return builder
