"""Registration with a Spark session: sources, secrets, query listener and Python workers."""

import atexit
import contextlib
import io
import os
import pkgutil
import re
import secrets
import shutil
import site
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from headrace.core.log_lines import show_lines
from headrace.core.system import this_program
from headrace.decoding import OPTION, SessionReporter, has_secret, reporter_of
from headrace.errors import SetupError
from headrace.gate.execution.connectors import SOURCES, connector_of
from headrace.gate.execution.gate_state import EVENTS_S, ledger_of, shared_ledger
from headrace.gate.execution.listener import GateListener
from headrace.gate.kafka.client.option_values import REDACTED, is_secret
from headrace.gate.ledger.connection import normalize_url, without_secrets
from headrace.gate.source.source_options import LEDGERS
from headrace.spark_versions import (
    Py4JError,
    active_context,
    is_remote,
    known_settings,
    warn_of_limits,
)
from headrace.task_link import new_token

if TYPE_CHECKING:
    from pyspark import SparkContext


VARIABLE: Final = "PYSPARK_PYTHON"

DAEMON: Final = "headrace.worker_daemon"
"""Module that Spark starts instead of PySpark's worker daemon. All executors need it too."""

LAUNCHER: Final = Path(__file__).with_name("compiled_python.sh")
"""Script with which Spark starts this program's Python. It removes Spark's Python archives from the
path, because the same packages are installed and compiled."""

_IMPORT_S: Final = 60
"""Maximum time for a test import of Headrace in Spark's Python (s)."""


def choose_python(context: "SparkContext", environ: Mapping[str, str] = os.environ) -> None:
    """Make sure that Spark's Python processes can import Headrace.

    With a local master, Spark uses this program's Python from now on, also for the user's own
    functions, unless the user has chosen a Python. With any other master, only the Python of this
    machine is checked, because the planner runs here. If the session distributes Python files,
    nothing is checked, because Headrace may be one of them.

    Raises `SetupError` if Spark's Python cannot be started, or cannot import headrace; the message
    names the setting.
    """
    chosen, is_local = context.pythonExec, str(context.master).startswith("local")
    path = shutil.which(chosen)
    is_this = path is not None and _is_this_python(Path(path))
    if is_local and (is_this or VARIABLE not in environ):
        context.pythonExec = sys.executable
        if _has_compiled_pyspark(context):
            context.environment["HEADRACE_PYTHON"] = sys.executable
            context.pythonExec = str(LAUNCHER)
        _keep_workers(context)
    elif path is None or not (is_this or context._python_includes or _has_headrace(path)):
        lacks = "is not on this machine" if path is None else "cannot import headrace"
        raise SetupError(
            f"Spark would start its Python processes with {chosen!r}, which {lacks}; before you"
            f" create the session, set {VARIABLE} to a Python that can import headrace on every"
            f" machine (on this machine: {sys.executable})."
        )


def _keep_workers(context: "SparkContext") -> None:
    """Make Spark start workers with `headrace.worker_daemon`, unless the user has set a daemon.

    Nothing changes if the session distributes Python files: Headrace may be one of them, and the
    daemon could not import it.
    """
    jsc: Any = context._jsc
    if jsc is not None and not context._python_includes:
        jsc.sc().conf().setIfMissing("spark.python.daemon.module", DAEMON)


def skip_lookup(spark: SparkSession) -> None:
    """Skip Spark's search for installed data sources, which starts a Python process.

    Spark searches for modules named ``pyspark_...``. The search is skipped if this program has no
    such module, and Spark uses the same Python.
    """
    if spark.sparkContext.pythonExec not in {sys.executable, str(LAUNCHER)}:
        return
    if any(module.name.startswith("pyspark_") for module in pkgutil.iter_modules()):
        return
    jvm: Any = spark._jvm
    try:
        kinds = getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$")
        manager = getattr(kinds, "MODULE$")
        if manager.dataSourceBuilders().isEmpty():
            none = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
            getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Some(none))
    except (Py4JError, TypeError):  # another Spark, with another class
        return


QUIET_LOGS: Final = "spark.headrace.quietLogs"
"""Spark setting that hides the warnings of the loggers in `_NOISE`. `configure` sets it."""

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_NOISE: Final = {
    # "Current batch is falling behind": a gate sizes batches to the interval, and reports lag.
    f"{_STREAMING}.ProcessingTimeExecutor": "ERROR",  # Spark 4.0
    f"{_STREAMING}.runtime.ProcessingTimeExecutor": "ERROR",
    # "spark.sql.adaptive.enabled is not supported in streaming": no action is possible.
    f"{_STREAMING}.ResolveWriteToStream": "ERROR",
    f"{_STREAMING}.runtime.ResolveWriteToStream": "ERROR",
    # "Failed to cancel job group": the query that ends runs no job.
    "org.apache.spark.scheduler.DAGScheduler": "ERROR",
}
"""New levels for Spark's loggers whose warnings have no meaning under a gate."""


def set_log_levels(spark: SparkSession, levels: Mapping[str, str]) -> None:
    """Set the levels of loggers in the driver's JVM. Without log4j 2, nothing changes."""
    jvm: Any = spark._jvm
    try:
        log4j = jvm.org.apache.logging.log4j
        for logger, level in levels.items():
            log4j.core.config.Configurator.setLevel(logger, log4j.Level.valueOf(level))
    except (Py4JError, TypeError):
        return


def _is_this_python(found: Path) -> bool:
    """Return whether a path is this program's Python, or a link to it in the same folder."""
    this = Path(sys.executable)
    return found.parent == this.parent and found.samefile(this)


def _has_compiled_pyspark(context: "SparkContext") -> bool:
    """Return whether Spark runs from the PySpark that is installed in this Python."""
    home, jvm = Path(pyspark.__file__).parent, context._jvm
    of_spark = None if jvm is None else jvm.java.lang.System.getenv("SPARK_HOME")
    return (
        str(home.parent) in site.getsitepackages()
        and of_spark is not None
        and home.samefile(of_spark)
        and os.access(LAUNCHER, os.X_OK)
    )


def _has_headrace(python: str) -> bool:
    try:
        result = subprocess.run(
            [python, "-c", "import headrace"], capture_output=True, timeout=_IMPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


# Spark may return several Python objects for one session, so a setting identifies the session.
_SESSION: Final = "headrace.session"


@dataclass
class _Session:
    """State of a registered session: parallelism, default ledger, and secrets of its sources.

    ``link_token`` authenticates tasks that report to a handler over Spark Connect. ``is_adopted``
    is True if another process has registered the session.
    """

    parallelism: int
    default_ledger: str | None = field(default=None, repr=False)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    link_token: str = field(default_factory=new_token, repr=False)
    is_adopted: bool = False


_sessions: Final[dict[str, _Session]] = {}
_lock: Final = threading.RLock()


def register(spark: SparkSession, *, ledger: str | None = None) -> None:
    """Register Headrace's sources and query listener with a session. A second call has no effect.

    Args:
        spark: the session.
        ledger: URL of the ledger for gates that are set only by the options ``headrace.gate`` and
            ``headrace.ledger``, without a `Gate` in this program. It is the URL in the option plus
            the password. The option must not contain the password, because Spark shows options.

    Raises:
        LedgerError: ``ledger`` is not a ledger's URL, or cannot be opened.
        SetupError: the Python that Spark starts for planners and tasks cannot import headrace; the
            message names the setting. With a local master, this happens only if the user has chosen
            the Python.
    """
    if ledger is not None:
        ledger = normalize_url(ledger)
        shared_ledger(ledger)
    with _lock:
        hidden = {} if ledger is None else _hidden({"headrace.ledger": ledger}, {})[1]
        session = _session(spark, hidden)
        if ledger is not None:
            session.default_ledger = ledger


def hide_secrets(spark: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """Replace secrets in a source's options by placeholders, which the session can resolve.

    The rest of a ledger's URL stays readable. Raises `LedgerError` if the option for the ledger is
    not a ledger's URL.
    """
    with _lock:
        session = _session(spark, {})
        shown, new = _hidden(options, session.secrets)
        _session(spark, new)
        return shown


def _hidden(
    options: Mapping[str, str], known: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options with placeholders, and the secrets that are new, by placeholder."""
    place_of = {secret: place for place, secret in known.items()}
    shown, new = dict[str, str](), dict[str, str]()
    for name, value in options.items():
        shown[name] = value
        if name.lower() in LEDGERS:
            shown[name] = without_secrets(value)
            if shown[name] != normalize_url(value):
                new[shown[name]] = normalize_url(value)
        elif is_secret(name) or (name.lower() == OPTION and has_secret(value)):
            shown[name] = place_of.get(value) or f"{REDACTED} {secrets.token_hex(8)}"
            new[shown[name]] = value
    return shown, new


def _name_of(spark: Any, origin: _Session | None) -> str:
    """Return a session's name: over Spark Connect its id, otherwise a name in its settings."""
    if is_remote(spark) and not (origin and origin.is_adopted):
        return str(spark.session_id)
    return spark.conf.get(_SESSION, None) or uuid.uuid4().hex


def _session(spark: SparkSession, new: Mapping[str, str]) -> _Session:
    origin = _sessions.get(spark.conf.get(_SESSION, None) or "")
    name = _name_of(spark, origin)
    session = _sessions.get(name)
    if session is not None and new.items() <= session.secrets.items():
        return session
    if session is None:
        if not is_remote(spark):
            choose_python(spark.sparkContext)
            skip_lookup(spark)
            if spark.conf.get(QUIET_LOGS, None) == "true":
                set_log_levels(spark, _NOISE)
        warn_of_limits()
        # A declarative pipeline's definitions may set nothing; only server-side handlers need it.
        with contextlib.suppress(PySparkException):
            spark.conf.set(_SESSION, name)
        session = _sessions[name] = _Session(_parallelism(spark))
        if origin is not None:  # a clone also has its origin's views
            session.default_ledger, session.secrets = origin.default_ledger, dict(origin.secrets)
        listener = GateListener(
            lambda gate, run: ledger_of(gate, run, _sessions[name].default_ledger),
            program=this_program(over_connect=is_remote(spark)),
        )
        if not is_remote(spark):  # over Spark Connect a query continues without its program
            atexit.register(_end_with_the_program, spark, listener)
        _listen(spark, listener)
    session.secrets |= new
    # One class for each session: Spark sends the class, with its attributes, to its processes.
    attributes = {
        "parallelism": session.parallelism,
        "secrets": dict(session.secrets),
        "reports": SessionReporter(session.link_token) if is_remote(spark) else reporter_of(spark),
        "driver": this_program(over_connect=is_remote(spark)),
    }
    for connector in map(connector_of, SOURCES):
        source = connector.source
        _register_source(spark, type(source.__name__, (source,), attributes))
    return session


def _end_with_the_program(spark: SparkSession, listener: GateListener) -> None:
    def is_active(run: UUID) -> bool:
        return any(str(query.runId) == str(run) for query in spark.streams.active)

    context = active_context()
    if context is None:  # Spark was stopped, and has delivered the events
        return
    with contextlib.suppress(Py4JError, OSError):
        listener.end_with_the_program(is_active, EVENTS_S)
        # From now on Spark would log a trace for each event that it cannot deliver.
        context.setLogLevel("OFF")


def _listen(spark: SparkSession, listener: GateListener) -> None:
    """Add a query listener to a session, so that it does not keep the program running.

    Over Spark Connect, PySpark delivers events in a thread that only ``spark.stop()`` ends, and
    Python waits for this thread before it exits. Here a daemon thread adds the listener, so
    PySpark's thread is a daemon too.
    """
    if not is_remote(spark):
        spark.streams.addListener(listener)
        return
    errors: list[BaseException] = []

    def add() -> None:
        try:
            spark.streams.addListener(listener)
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            errors.append(error)

    adding = threading.Thread(target=add, name="headrace listener", daemon=True)
    adding.start()
    adding.join()
    if errors:
        raise errors[0]


def known_secrets(spark: SparkSession) -> dict[str, str]:
    """Return the secrets of a registered session, by placeholder."""
    with _lock:
        return dict(_session(spark, {}).secrets)


def link_token(spark: SparkSession) -> str:
    """Return the token with which a session's tasks authenticate their reports to a handler."""
    with _lock:
        return _session(spark, {}).link_token


def adopt(spark: SparkSession, known: Mapping[str, str]) -> None:
    """Record a session that another process has registered, with its secrets.

    Used in the server's process that runs a handler of Spark Connect.
    """
    with _lock:
        name = spark.conf.get(_SESSION, None) or ""
        _sessions.setdefault(name, _Session(0, is_adopted=True)).secrets |= known


_SPLITS: Final = re.compile(r"splits=(?:Some\()?(\d+)")
_ASSUMED_PARALLELISM: Final = 4


def _parallelism(spark: SparkSession) -> int:
    """Return how many tasks a session runs at once. Over Spark Connect, a query plan shows it."""
    if not is_remote(spark):
        return spark.sparkContext.defaultParallelism
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        spark.range(1).explain()
    match = _SPLITS.search(plan.getvalue())
    return int(match[1]) if match is not None else _ASSUMED_PARALLELISM


def _register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source as ``spark.dataSource.register`` does, but with a thread-safe map.

    The map has the environment variables of all queries of the source. Each query that starts adds
    to it in its own thread. PySpark's ``HashMap`` is damaged by two simultaneous writes, and then
    no task of any query can be deserialized (``OptionalDataException``). Spark's method also looks
    for an existing source in the thread's active session. If this is another session, Spark would
    not register the source here.
    """
    if is_remote(spark):
        spark.dataSource.register(source)
        return
    from pyspark.sql.udf import _wrap_function  # noqa: PLC0415  (a Connect client has no py4j)

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
    session.sessionState().dataSourceManager().registerDataSource(source.name(), registered)


RECOMMENDED_CONF: Final = known_settings(
    {
        # Between the JVM and its Python workers TCP waits on delayed acknowledgements: 40 ms a task
        "spark.python.unix.domain.socket.enabled": "true",
    }
)
"""Recommended settings for building a session; `headrace doctor` checks them."""


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set options for fast small batches and a short log on a session's builder.

    Unless the program configures logging itself, Headrace's warnings go to the standard error with
    time and level. The progress bar, and warnings of Spark without meaning under a gate, are turned
    off; set ``spark.headrace.quietLogs`` to ``false`` to keep these warnings.

    >>> import headrace
    >>> from pyspark.sql import SparkSession
    >>> builder = headrace.configure(SparkSession.builder.appName("orders"))
    """
    show_lines()
    # The progress bar would be mixed into the log's lines.
    quiet = {QUIET_LOGS: "true", "spark.ui.showConsoleProgress": "false"}
    for name, value in {**RECOMMENDED_CONF, **quiet}.items():
        builder = builder.config(name, value)
    return builder


def is_new_checkpoint(spark: SparkSession, path: str) -> bool:
    """Return whether a checkpoint has no batch yet; False if unknown, as over Spark Connect."""
    if is_remote(spark):
        return False
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path, "offsets")
    system = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return not system.exists(folder)
