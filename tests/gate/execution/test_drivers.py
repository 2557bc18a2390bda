"""Which exceptions say that a sink is away; test_real_outages.py has what drivers really raise."""

import asyncio
import errno
import sqlite3
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import requests
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis.strategies import sampled_from, text
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException, PySparkValueError, PythonException
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from headrace.errors import (
    READ,
    BatchSplitError,
    BrokerError,
    DecodeError,
    HandlerExitError,
    LedgerError,
    MachineryError,
    OptionError,
    RejectionError,
    SetupError,
    SinkAwayError,
)
from headrace.gate.execution.verdicts import sink_is_away


def kind(module: str, name: str, base: type[Exception] = Exception) -> type[Exception]:
    """A class of a package that is not installed here."""
    return type(name, (base,), {"__module__": module})


def error_of(module: str, name: str, *arguments: object, **values: object) -> Exception:
    error = kind(module, name)(*arguments)
    for attribute, value in values.items():
        setattr(error, attribute, value)
    return error


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def while_handling(error: BaseException, handled: BaseException) -> BaseException:
    error.__context__ = handled
    return error


def hidden(error: BaseException, cause: BaseException) -> BaseException:
    """As ``raise error from None`` does, while the cause is handled."""
    error.__context__ = cause
    error.__suppress_context__ = True
    return error


def by_requests(status: int) -> Exception:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


def by_httpx(status: int) -> Exception:
    request = httpx.Request("GET", "http://orders/")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status))


def by_botocore(status: int, code: str = "") -> Exception:
    response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}
    return error_of("botocore.exceptions", "ClientError", response=response)


def by_sqlalchemy(error: Exception) -> BaseException:
    return caused(OperationalError("INSERT", {}, error), error)


def cut_off(state: str) -> BaseException:
    """SQLAlchemy's error for a connection that the server has ended, and said why."""
    said = by_psycopg(state)
    return caused(DBAPIError("INSERT", {}, said, connection_invalidated=True), said)


def by_psycopg(state: str) -> Exception:
    return psycopg.errors.lookup(state)("it says so")


def by_sqlite(call: Any) -> Exception:
    with pytest.raises(sqlite3.Error) as caught:
        call()
    return caught.value


OUTAGE = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
REFUSAL = psycopg.errors.UniqueViolation("a key is there twice")

AWAY = [
    SinkAwayError("the terminal is closed"),
    caused(ValueError("no"), SinkAwayError("the terminal is closed")),
    caused(SinkAwayError("the terminal is closed"), by_requests(403)),
    OUTAGE,
    TimeoutError("too slow"),
    caused(RuntimeError("cannot write"), OUTAGE),
    while_handling(RuntimeError("cannot write"), OUTAGE),
    caused(LedgerError("The ledger failed."), by_sqlalchemy(psycopg.OperationalError("gone"))),
    ExceptionGroup("two", [OUTAGE, TimeoutError()]),
    *[by_requests(status) for status in (408, 425, 429, 502, 503, 504, 529)],
    *[by_httpx(status) for status in (429, 502, 503, 504)],
    *[by_botocore(status) for status in (429, 500, 503)],
    by_botocore(400, "ThrottlingException"),
    by_botocore(400, "ProvisionedThroughputExceededException"),
    *[IncompleteRead(b""), error_of("urllib3.exceptions", "ProtocolError")],
    error_of("aiohttp.client_exceptions", "ClientResponseError", status=503),
    error_of("google.api_core.exceptions", "ServiceUnavailable", code=503),
    error_of("elasticsearch", "ApiError", status_code=429),
    *[requests.ConnectionError(), requests.ReadTimeout(), requests.exceptions.RetryError()],
    *[httpx.ConnectError(""), httpx.ReadTimeout(""), httpx.RemoteProtocolError("")],
    error_of("aiohttp.client_exceptions", "ClientConnectorError"),
    error_of("botocore.exceptions", "EndpointConnectionError"),
    error_of("pymongo.errors", "ServerSelectionTimeoutError"),
    error_of("redis.exceptions", "ConnectionError"),
    psycopg.OperationalError("the connection is closed"),
    *[by_psycopg(state) for state in ("08006", "53100", "53200", "53300", "57P01", "57P03")],
    *[by_psycopg(state) for state in ("25006", "58030")],
    by_sqlalchemy(by_psycopg("57P02")),
    cut_off("57P01"),
    DBAPIError("SELECT", {}, ValueError(), connection_invalidated=True),
    error_of("psycopg2", "OperationalError", "gone", pgcode=None),
    error_of("psycopg2.errors", "AdminShutdown", "gone", pgcode="57P01"),
    error_of("pyodbc", "OperationalError", "08S01", "Communication link failure"),
    error_of("pymysql.err", "OperationalError", 2003, "Can't connect"),
    error_of("pymysql.err", "OperationalError", 1290, "--read-only"),
    error_of("mysql.connector.errors", "InterfaceError", "2003: Can't connect", errno=2003),
    error_of("sqlite3", "OperationalError", sqlite_errorcode=sqlite3.SQLITE_BUSY_SNAPSHOT),
    error_of("oracledb.exceptions", "OperationalError", "DPY-6005: cannot connect"),
    *[
        KafkaException(KafkaError(code))
        for code in (
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._MSG_TIMED_OUT,
            KafkaError._RESOLVE,
            KafkaError._TIMED_OUT,
            KafkaError._TRANSPORT,
            KafkaError.NOT_ENOUGH_REPLICAS,
        )
    ],
    error_of("kafka.errors", "NoBrokersAvailable"),
    *[
        OSError(number, "")
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
    ],
    PermissionError(errno.EACCES, "Permission denied", "/orders/1"),
]

NOT_AWAY = [
    *[ValueError("ConnectionError: x"), KeyError("x"), AttributeError("x"), EOFError()],
    *[FileNotFoundError(errno.ENOENT, ""), OSError(errno.ENAMETOOLONG, ""), OSError("x")],
    PermissionError(errno.EPERM, "Operation not permitted"),
    *[by_requests(status) for status in (400, 401, 403, 404, 413, 422, 500)],
    by_httpx(500),
    *[by_botocore(403), by_botocore(400, "ValidationException")],
    by_botocore(400, "LimitExceededException"),
    error_of("google.api_core.exceptions", "NotFound", code=404),
    *[requests.exceptions.InvalidURL(), httpx.UnsupportedProtocol(""), httpx.DecodingError("")],
    *[by_psycopg(state) for state in ("40001", "40P01", "55P03", "57014", "42P01", "42703")],
    *[by_psycopg(state) for state in ("22P02", "23505", "53400", "58P01", "28P01", "3D000")],
    by_sqlalchemy(by_psycopg("40P01")),
    *[cut_off(state) for state in ("25P03", "25P04", "57P05")],
    caused(LedgerError("The ledger failed."), cut_off("25P03")),
    PoolTimeoutError("QueuePool limit"),
    psycopg.InterfaceError("the cursor is closed"),
    error_of("psycopg2.errors", "DeadlockDetected", "no", pgcode="40P01"),
    error_of("pymysql.err", "OperationalError", 1213, "Deadlock found"),
    error_of("pymysql.err", "ProgrammingError", 1146, "no such table"),
    KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)),
    KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC)),
    KafkaException("a text"),
    hidden(ValueError("a bad record"), OUTAGE),
    while_handling(REFUSAL, psycopg.OperationalError("gone")),
    ExceptionGroup("two", [OUTAGE, ValueError()]),
    *[error_of("multiprocessing.context", "TimeoutError"), AnalysisException(message="no column")],
    *[Py4JNetworkError("nobody answers"), while_handling(Py4JNetworkError("no"), OUTAGE)],
    *[InterruptedError("The query is stopped"), KeyboardInterrupt(), asyncio.CancelledError()],
    *[
        caused(error, OUTAGE)
        for error in (
            BatchSplitError("x"),
            BrokerError("x"),
            DecodeError("x"),
            HandlerExitError("x"),
            MachineryError("x"),
            OptionError("x"),
            RejectionError("x"),
            SetupError("x"),
        )
    ],
]


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_an_outage_is_known(error: BaseException) -> None:
    assert sink_is_away(error)


@pytest.mark.parametrize("error", NOT_AWAY, ids=repr)
def test_what_is_no_outage_is_known(error: BaseException) -> None:
    assert not sink_is_away(error)


def test_what_was_raised_while_the_source_was_read_is_none_of_the_sink_s() -> None:
    reading = ConnectionRefusedError("the broker is away")
    reading.add_note(READ)
    assert not sink_is_away(caused(RuntimeError("cannot"), reading))
    assert not sink_is_away(of_task(f"ConnectionRefusedError: no\n{READ}\n"))


def test_a_sqlite_file_is_away_by_its_code(tmp_path: Path) -> None:
    path = f"{tmp_path}/orders.db"
    with sqlite3.connect(path) as first:
        first.execute("CREATE TABLE orders (id PRIMARY KEY)")
    second = sqlite3.connect(path, timeout=0)
    first.execute("BEGIN IMMEDIATE")
    second.execute("PRAGMA max_page_count = 1")
    read_only = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for away in (
        lambda: second.execute("BEGIN IMMEDIATE"),
        lambda: sqlite3.connect(f"{tmp_path}/nothing/orders.db"),
        lambda: read_only.execute("CREATE TABLE more (id)"),
    ):
        assert sink_is_away(by_sqlite(away))
    assert not sink_is_away(by_sqlite(lambda: read_only.execute("SELECT * FROM nothing")))
    for each in (first, second, read_only):
        each.close()


def test_a_socket_between_pyspark_and_its_jvm_is_no_sink_s() -> None:
    call = "def read():\n    raise ConnectionResetError('the JVM is gone')\n"
    exec(call, inside := {"__name__": "pyspark.serializers"})  # noqa: S102  (a module's globals)
    with pytest.raises(ConnectionResetError) as caught:
        inside["read"]()  # type: ignore[operator]
    assert not sink_is_away(caught.value)


# Spark's messages, as text and as Java's exceptions.


class Kind:
    """A class of Java's."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def getName(self) -> str:
        return self.names[0]

    def getSuperclass(self) -> "Kind | None":
        return Kind(*self.names[1:]) if self.names[1:] else None


class Thrown:
    """An exception of Java's, as Py4J has it."""

    _target_id = "o1"

    def __init__(
        self,
        name: str,
        message: str | None = None,
        cause: "Thrown | None" = None,
        frames: tuple[str, ...] = (),
        state: str | None = None,
    ) -> None:
        self.names = (name, *(["java.sql.SQLException"] if state else []))
        self.message, self.cause, self.frames, self.state = message, cause, frames, state

    def getClass(self) -> Kind:
        return Kind(*self.names)

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> "Thrown | None":
        return self.cause

    def getStackTrace(self) -> tuple[str, ...]:
        return self.frames

    def getSQLState(self) -> str | None:
        return self.state

    def __str__(self) -> str:
        """As Java prints it."""
        head = self.names[0] + (f": {self.message}" if self.message else "")
        stack = "".join(f"\n\tat {frame}" for frame in self.frames)
        return head + stack + (f"\nCaused by: {self.cause}" if self.cause else "")


JOB = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure:"
    " Lost task 0.0 in stage 1.0 (TID 3) (192.0.2.2 executor driver): "
)
SPARK = "org.apache.spark.SparkException"
WRITING = ("org.apache.spark.sql.execution.datasources.FileFormatWriter$.write(X.scala:1)",)
ATTEMPT = "file:/orders/_temporary/0/_temporary/attempt_2026112521_0030_m_000001_39"
TO_PYTHON = ("org.apache.spark.api.python.BasePythonRunner$ReaderInputStream.read(X.scala:1)",)


def in_a_job(thrown: Thrown) -> Py4JJavaError:
    """As classic Spark raises what a task has thrown."""
    return Py4JJavaError(
        "An error occurred while calling o1.save.\n",
        Thrown(SPARK, f"{JOB}{thrown}\n\nDriver stacktrace:", thrown, WRITING),
    )


def as_text(thrown: Thrown) -> PySparkException:
    """As Spark Connect raises it."""
    return PySparkException(f"{JOB}{thrown}\n\nDriver stacktrace:\n\nJVM stacktrace:\n{SPARK}")


def of_task(raised: str) -> PythonException:
    """As Spark raises what a Python worker has written."""
    frames = 'Traceback (most recent call last):\n  File "/shop/sink.py", line 1, in write\n'
    return PythonException(
        message=f"An exception was thrown from the Python worker:\n{frames}{raised}\n"
    )


S3 = "software.amazon.awssdk.services.s3.model.S3Exception"
ABFS = "org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException"

THROWN_AWAY = [
    Thrown("java.net.ConnectException", "Connection refused", None, ("java.net.Socket.x(X:1)",)),
    Thrown("java.net.UnknownHostException", "orders.invalid"),
    Thrown("org.apache.kafka.common.errors.TimeoutException", "Topic x not present in metadata"),
    Thrown("org.apache.kafka.common.errors.NotEnoughReplicasException", "x"),
    Thrown(
        "org.apache.kafka.common.KafkaException",
        "Failed to construct kafka producer",
        Thrown(
            "org.apache.kafka.common.config.ConfigException",
            "No resolvable bootstrap urls given in bootstrap.servers",
        ),
        WRITING,
    ),
    Thrown(
        SPARK,
        "[TASK_WRITE_FAILED] Task failed while writing rows to file:/orders. SQLSTATE: 58030",
        Thrown("java.io.IOException", "No space left on device", None, WRITING),
        WRITING,
    ),
    Thrown("java.io.IOException", f"Mkdirs failed to create {ATTEMPT} (exists=false, cwd=file:/x)"),
    Thrown("java.io.FileNotFoundException", "/orders/part-1.parquet (Read-only file system)"),
    Thrown("java.nio.file.FileSystemException", "/orders: Disk quota exceeded"),
    Thrown("java.nio.file.AccessDeniedException", "/orders"),
    Thrown("org.apache.hadoop.security.AccessControlException", "Permission denied: user=shop"),
    Thrown("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "x"),
    Thrown(
        "org.apache.spark.sql.delta.DeltaIOException",
        "[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/orders/_delta_log",
    ),
    Thrown("org.apache.hadoop.fs.s3a.AWSServiceThrottledException", "PUT 1 on orders/1: Slow Down"),
    Thrown(S3, "Please reduce your request rate. (Service: S3, Status Code: 503, Request ID: x)"),
    Thrown(S3, "We encountered an internal error. (Service: S3, Status Code: 500, Request ID: x)"),
    Thrown(ABFS, 'Operation failed: "The server is busy.", 503, PUT, https://x/orders'),
    Thrown(
        "com.google.api.client.googleapis.json.GoogleJsonResponseException",
        "503 Service Unavailable\nPOST https://storage.googleapis.com/upload",
    ),
]

THROWN_NOT_AWAY = [
    Thrown("java.io.EOFException"),
    Thrown("java.lang.OutOfMemoryError", "Java heap space"),
    Thrown(
        SPARK,
        "Python worker exited unexpectedly (crashed). Consider setting ...",
        Thrown("java.net.SocketException", "Connection reset", None, TO_PYTHON),
        TO_PYTHON,
    ),
    Thrown("java.net.SocketException", "Connection reset", None, TO_PYTHON),
    Thrown(
        "org.apache.spark.shuffle.FetchFailedException",
        "Failed to connect to host:1",
        Thrown("java.net.ConnectException", "Connection refused"),
    ),
    Thrown(
        "java.io.IOException", f"Mkdirs failed to create {ATTEMPT}/name=xxx (exists=false, cwd=x)"
    ),
    Thrown("java.io.IOException", "a record says No space left on device"),
    Thrown("org.apache.hadoop.fs.ParentNotDirectoryException", "Parent path is not a directory: x"),
    Thrown(S3, "Access Denied (Service: S3, Status Code: 403, Request ID: x)"),
    Thrown(ABFS, 'Operation failed: "Conflict", 409, PUT, https://x/orders", 503, '),
    Thrown("org.apache.kafka.common.errors.RecordTooLargeException", "x"),
    Thrown(
        "org.postgresql.util.PSQLException",
        "FATAL: terminating connection due to idle-in-transaction timeout",
    ),
    Thrown("shop.OrderException", "java.net.ConnectException: in a record"),
]


@pytest.mark.parametrize("raised", [in_a_job, as_text])
@pytest.mark.parametrize("thrown", THROWN_AWAY, ids=lambda thrown: thrown.names[0])
def test_an_outage_in_java_is_known(thrown: Thrown, raised: Any) -> None:
    assert sink_is_away(raised(thrown))


@pytest.mark.parametrize("raised", [in_a_job, as_text])
@pytest.mark.parametrize("thrown", THROWN_NOT_AWAY, ids=lambda thrown: thrown.names[0])
def test_what_is_no_outage_in_java_is_known(thrown: Thrown, raised: Any) -> None:
    assert not sink_is_away(raised(thrown))


@pytest.mark.parametrize(
    ("state", "expected"),
    [("08001", True), ("57P01", True), ("25006", True), ("23505", False), ("40P01", False)],
)
def test_jdbc_is_known_by_its_sqlstate(state: str, expected: bool) -> None:
    thrown = Thrown("org.postgresql.util.PSQLException", "it says so", state=state)
    batch = Thrown("java.sql.BatchUpdateException", "Batch entry 0 ...", thrown, state=state)
    assert sink_is_away(in_a_job(batch)) is expected


def test_an_executor_that_is_lost_is_no_sink() -> None:
    lost = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: x"
    text = f"{JOB}{lost}\nDriver stacktrace:"
    assert not sink_is_away(Py4JJavaError("", Thrown(SPARK, text, None, WRITING)))
    assert not sink_is_away(PySparkException(text))


def test_a_job_that_reaches_nobody_before_its_first_task_is_known() -> None:
    refused = Thrown("java.net.ConnectException", "Connection refused")
    unsaid = Thrown("org.postgresql.util.PSQLException", "The connection attempt failed.", refused)
    assert sink_is_away(Py4JJavaError("An error occurred while calling o1.save.\n", unsaid))
    connect = "(java.net.ConnectException) Connection refused\n\nJVM stacktrace:\nx"
    assert sink_is_away(PySparkException(connect))


HANDLING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
HEAD = 'Traceback (most recent call last):\n  File "/shop/sink.py", line 2, in write\n'

TASK_AWAY = [
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "TimeoutError",
    "socket.gaierror: [Errno -2] Name or service not known",
    "psycopg.OperationalError: connection failed",
    "psycopg.errors.AdminShutdown: terminating connection due to administrator command",
    "psycopg.errors.ReadOnlySqlTransaction: cannot execute INSERT in a read-only transaction",
    f"psycopg.OperationalError: gone{HANDLING}{HEAD}RuntimeError: cannot write",
    "psycopg2.OperationalError: could not connect to server",
    'pymysql.err.OperationalError: (2003, "Can\'t connect to MySQL server")',
    "mysql.connector.errors.DatabaseError: 2003 (HY000): Can't connect to MySQL server",
    "sqlite3.OperationalError: database is locked",
    "requests.exceptions.ConnectionError: no",
    "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: http://x",
    "httpx.HTTPStatusError: Server error '503 Service Unavailable' for url 'http://x'",
    "urllib.error.HTTPError: HTTP Error 429: Too Many Requests",
    "aiohttp.client_exceptions.ClientResponseError: 503, message='x', url='x'",
    "botocore.exceptions.ClientError: An error occurred (ThrottlingException) when calling the"
    " PutRecords operation: Rate exceeded",
    "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject"
    " operation (reached max retries: 4): Please reduce your request rate.",
    'cimpl.KafkaException: KafkaError{code=_TRANSPORT,val=-195,str="no"}',
    'cimpl.KafkaException: KafkaError{FATAL,code=_TIMED_OUT,val=-185,str="no"}',
    "OSError: [Errno 28] No space left on device: '/orders/1'",
    "PermissionError: [Errno 13] Permission denied: '/orders/1'",
    "headrace.errors.SinkAwayError: the terminal is closed",
    f"shop.Refused: closed{HANDLING}{HEAD}headrace.errors.SinkAwayError: closed",
]

TASK_NOT_AWAY = [
    "ValueError: ConnectionError: in a record",
    "ValueError: a record\nConnectionError: in it",
    f"ValueError: a record{HANDLING}{HEAD}ConnectionError: in it",
    "ValueError: a record\nheadrace.errors.SinkAwayError: in it",
    "ValueError: a record\nTraceback (most recent call last):\nheadrace.errors.SinkAwayError: x",
    "requests.exceptions.HTTPError: 413 Client Error: for url: http://x?503 Server Error: ",
    "httpx.HTTPStatusError: Client error '422 Unprocessable' for url 'Server error '503 '",
    "urllib.error.HTTPError: HTTP Error 404: HTTP Error 503: ",
    "psycopg.errors.DeadlockDetected: deadlock detected",
    f"psycopg.OperationalError: gone{HANDLING}{HEAD}psycopg.errors.DataError: no",
    "pymysql.err.OperationalError: (1213, 'Deadlock found (2003, ')",
    "sqlite3.OperationalError: no such table: database is locked",
    'cimpl.KafkaException: KafkaError{code=MSG_SIZE_TOO_LARGE,val=10,str="val=-195,"}',
    "OSError: [Errno 36] File name too long: '[Errno 28] '",
    "headrace.errors.OptionError: no",
    "headrace.errors.BrokerError: no",
    "MemoryError",
]


@pytest.mark.parametrize("raised", TASK_AWAY)
def test_an_outage_in_a_task_is_known(raised: str) -> None:
    assert sink_is_away(of_task(raised))


@pytest.mark.parametrize("raised", TASK_NOT_AWAY)
def test_what_is_no_outage_in_a_task_is_known(raised: str) -> None:
    assert not sink_is_away(of_task(raised))


def test_a_worker_that_loses_its_jvm_is_no_sink() -> None:
    told = str(of_task("ConnectionResetError: x")).replace("/shop/", "/lib/pyspark/")
    assert not sink_is_away(PythonException(message=told))


def test_pyspark_s_own_checks_and_the_values_of_a_query_are_no_outage() -> None:
    forged = "[CAST_INVALID_INPUT] 'x\nCaused by: java.net.ConnectException: x'"
    assert not sink_is_away(PySparkValueError(forged))
    number = type("NumberFormatException", (PySparkException,), {})
    assert not sink_is_away(number(forged))
    thrown = Thrown("org.apache.spark.SparkNumberFormatException", forged, None, WRITING)
    assert not sink_is_away(in_a_job(thrown))


FORGERIES = [each for each in TASK_AWAY if "SinkAwayError" not in each]


@pytest.mark.integration
@given(sampled_from(FORGERIES), text(), sampled_from(["\n", "\n\n", HANDLING, HANDLING + HEAD]))
def test_no_message_of_a_task_makes_an_outage(forged: str, start: str, between: str) -> None:
    assert not sink_is_away(of_task(f"ValueError: {start}{between}{forged}"))
    thrown = Thrown("shop.OrderException", f"{start}{between}Caused by: {THROWN_AWAY[0]}")
    assert not sink_is_away(in_a_job(thrown))


@pytest.mark.integration
@pytest.mark.parametrize("part", ["\n", " ", "\n\tat x", "\nCaused by: a.B: x", "a."])
def test_a_long_message_is_read_once(part: str) -> None:
    """In a time that grows with its square it would take an hour."""
    long = part * 300_000
    assert not sink_is_away(of_task(f"ValueError: {long}"))
    assert not sink_is_away(as_text(Thrown("shop.OrderException", long)))
