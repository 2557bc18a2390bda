"""Set-up of a Spark session, once: the sources, their secrets, and the listener of the gates."""

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
"""The module that Spark starts in place of PySpark's daemon; executors on other machines need it
too."""

LAUNCHER: Final = Path(__file__).with_name("compiled_python.sh")
"""The script that starts this program's Python for Spark without Spark's archives."""

_IMPORT_S: Final = 60
"""The time limit for an import of Headrace in another Python (s)."""


def choose_python(context: "SparkContext", environ: Mapping[str, str] = os.environ) -> None:
    """Make sure that Spark's Python processes can import Headrace.

    With a local master, unless the user chose a Python, this program's Python is used from now on,
    also for the user's own functions. With any other master the machines may differ, and only this
    one is examined, because the planner runs here. If the session sends Python files along, nothing
    is examined, because Headrace may be one of them.

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
            f"Spark would start its Python processes with {chosen!r}, which {lacks}; set"
            f" {VARIABLE} to a Python that has it on every machine, here {sys.executable}, before"
            " the session is made."
        )


def _keep_workers(context: "SparkContext") -> None:
    """Start workers with `headrace.worker_daemon` from now on, unless another daemon is set.

    Python files of the session are not in the daemon's path, and Headrace may be one of them.
    """
    jsc: Any = context._jsc
    if jsc is not None and not context._python_includes:
        jsc.sc().conf().setIfMissing("spark.python.daemon.module", DAEMON)


def skip_lookup(spark: SparkSession) -> None:
    """Avoid the Python process in which Spark looks for installed data sources.

    Data sources are modules named ``pyspark_...``. If this program has none, and Spark uses the
    same Python, the lookup would find none either. Otherwise Spark looks itself.
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
"""Setting of `configure`: whether the levels of Spark's loggers in `_NOISE` are raised."""

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
"""Levels of loggers whose warnings have no meaning under a gate."""


def set_log_levels(spark: SparkSession, levels: Mapping[str, str]) -> None:
    """Set the levels of the driver's loggers; without log4j 2 in its JVM nothing changes."""
    jvm: Any = spark._jvm
    try:
        log4j = jvm.org.apache.logging.log4j
        for logger, level in levels.items():
            log4j.core.config.Configurator.setLevel(logger, log4j.Level.valueOf(level))
    except (Py4JError, TypeError):
        return


def _is_this_python(found: Path) -> bool:
    """Whether a Python is of this program's environment; both Pythons of one are often links."""
    this = Path(sys.executable)
    return found.parent == this.parent and found.samefile(this)


def _has_compiled_pyspark(context: "SparkContext") -> bool:
    """Whether this Python's PySpark is installed, and is the copy that Spark has as an archive."""
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
    """State of a session: its parallelism, default ledger, and its sources' secrets.

    ``link_token`` authenticates tasks that report to a handler over Spark Connect. ``is_adopted``:
    another process has registered the session.
    """

    parallelism: int
    default_ledger: str | None = field(default=None, repr=False)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    link_token: str = field(default_factory=new_token, repr=False)
    is_adopted: bool = False


_sessions: Final[dict[str, _Session]] = {}
_lock: Final = threading.RLock()


def register(spark: SparkSession, *, ledger: str | None = None) -> None:
    """Register the sources with a session, and listen to its queries. Repeated calls are harmless.

    Args:
        spark: the session.
        ledger: the ledger of gates that are used by options alone (``headrace.gate`` and
            ``headrace.ledger`` on the bare format), if no `Gate` of this program names it. The same
            URL as in the option, but with its password, which Spark would show in the option.

    Raises:
        LedgerError: ``ledger`` is not a ledger's URL, or cannot be opened.
        SetupError: the Python that Spark starts for planners and tasks has no headrace; the message
            names the setting. With a local master and no choice of the user, it is set here.
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
    """Return a source's options with placeholders for secrets, which the session resolves.

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
    """Return the options without secrets, and the new secrets by their placeholders."""
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
    """Return the name of a session. Over Connect a clone inherits its origin's settings."""
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
    """Add a listener that does not keep the program running.

    Over Spark Connect PySpark delivers events in a thread that Python waits for at its end, and
    only ``spark.stop()`` ends that thread. A thread started by a daemon thread is a daemon too.
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
    """Return the secrets of a registered session by their placeholders."""
    with _lock:
        return dict(_session(spark, {}).secrets)


def link_token(spark: SparkSession) -> str:
    """Return the token of a session's tasks that report to a handler over Spark Connect."""
    with _lock:
        return _session(spark, {}).link_token


def adopt(spark: SparkSession, known: Mapping[str, str]) -> None:
    """Record a session that another process has registered, and its secrets.

    For Spark Connect's server, where handlers run in a process of their own.
    """
    with _lock:
        name = spark.conf.get(_SESSION, None) or ""
        _sessions.setdefault(name, _Session(0, is_adopted=True)).secrets |= known


_SPLITS: Final = re.compile(r"splits=(?:Some\()?(\d+)")
_ASSUMED_PARALLELISM: Final = 4


def _parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that a session runs at once; over Connect, from a plan."""
    if not is_remote(spark):
        return spark.sparkContext.defaultParallelism
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        spark.range(1).explain()
    match = _SPLITS.search(plan.getvalue())
    return int(match[1]) if match is not None else _ASSUMED_PARALLELISM


def _register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source with environment variables that any number of threads may share.

    Like ``spark.dataSource.register``, except for the map of these variables, which all queries of
    the source share. Spark adds to the map in the thread of each query that starts, and serializes
    the map for the tasks. Two threads that add at once damage PySpark's ``HashMap``, and then no
    task of any query can be read (``OptionalDataException``). Spark's method also checks the
    thread's active session, perhaps another one, for such a source, and would then skip this
    session.
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
    """Return whether a checkpoint has no batch yet; False over Connect, which hides the path."""
    if is_remote(spark):
        return False
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path, "offsets")
    system = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return not system.exists(folder)
