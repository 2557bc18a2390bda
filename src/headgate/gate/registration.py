"""What a Spark session needs once: the sources, and the listener that feeds the gates."""

import uuid
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.udf import _wrap_function

from headgate.gate.connectors import CONNECTORS
from headgate.gate.ledgers import ledger_of, shared_ledger
from headgate.gate.listener import GateListener
from headgate.ledger import normalize_url
from headgate.processes import this_process

# Spark gives out several Python objects for one session, so its own settings tell which it is.
_SESSION: Final = "headgate.session"
_default_ledger: Final[dict[str, str | None]] = {}


def register(spark: SparkSession, *, ledger: str | None = None) -> None:
    """Make the sources known to a session, and listen to its queries. Again is harmless.

    Args:
        spark: the session.
        ledger: the ledger of gates that are used by options alone (``headgate.gate`` and
            ``headgate.ledger`` on the bare format), where no `Gate` of this program names it. The
            same URL as in the option.

    Raises:
        LedgerError: ``ledger`` is not a ledger's URL, or cannot be opened.
    """
    if ledger is not None:
        ledger = normalize_url(ledger)
        shared_ledger(ledger)
    session = spark.conf.get(_SESSION, None)
    if session in _default_ledger:
        if ledger is not None:
            _default_ledger[session] = ledger
        return
    session = uuid.uuid4().hex
    spark.conf.set(_SESSION, session)
    _default_ledger[session] = ledger
    of_session_values = {
        "parallelism": spark.sparkContext.defaultParallelism,
        "driver": this_process(),
    }
    # A class of its own for this session: Spark sends the class, and so these, to its planner.
    for connector in CONNECTORS.values():
        source = connector.source
        of_session = type(source.__name__, (source,), of_session_values)
        _register_source(spark, of_session)
    spark.streams.addListener(
        GateListener(lambda gate, run: ledger_of(gate, run, _default_ledger[session]))
    )


def _register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source with environment variables that any number of threads may share.

    As ``spark.dataSource.register`` does, but for the map of these variables, which all queries of
    the source share. Spark adds to it in the thread of each query that starts, and serializes it
    for the tasks. PySpark gives it a ``HashMap``. Two threads that add at once leave that with a
    wrong size, and no task of any query can read it from then on (``OptionalDataException``).
    """
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    wrapped: Any = _wrap_function(spark.sparkContext, source)
    function = jvm.SimplePythonFunction(
        wrapped.command(),
        jvm.java.util.concurrent.ConcurrentHashMap(wrapped.envVars()),
        wrapped.pythonIncludes(),
        wrapped.pythonExec(),
        wrapped.pythonVer(),
        wrapped.broadcastVars(),
        wrapped.accumulator(),
    )
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python
    registered = python.UserDefinedPythonDataSource(function)
    session.dataSource().registerPython(source.name(), registered)


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
