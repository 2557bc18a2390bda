"""Classes of a handler's exception: the source's, a stop of the query, its own."""

import errno
import re
import ssl
import traceback
from urllib.error import URLError

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PythonException
from sqlalchemy.exc import IntegrityError, OperationalError
from tests.services.lakes import DELTA

from headrace.errors import (
    BrokerError,
    CorruptionError,
    DataLossError,
    JournalError,
    LedgerError,
    MachineryError,
    OptionError,
    RejectionError,
    SetupError,
    SourceError,
    TooManyRejectedError,
)
from headrace.gate.execution.stopping import shorten_interrupts
from headrace.gate.execution.verdicts import (
    ends_query,
    failure_of,
    no_connection,
)
from headrace.gate.execution.verdicts import (
    unreachable_source as unreached,
)

TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/headrace/gate/source/readers.py", line 103, in read
headrace.errors.{}: it is gone; do this.
"""


def of_spark(text: str) -> PythonException:
    return PythonException(message=text)


def blameless(error: Exception) -> object:
    """Why an exception says nothing of its records; None where it may."""
    failure = failure_of(error)
    return failure.report if failure.is_blameless else None


@pytest.mark.parametrize("kind", [DataLossError, CorruptionError])
def test_what_a_task_raised_is_found_wherever_the_handler_has_wrapped_it(
    kind: type[Exception],
) -> None:
    spark = of_spark(TASK.format(kind.__name__))
    wrapped = RuntimeError("the job failed")
    wrapped.__cause__ = spark
    within = ValueError("while handling")
    within.__context__ = wrapped
    for raised in (kind("it is gone; do this."), spark, wrapped, within):
        found = ends_query(raised)
        assert type(found) is kind
        assert str(found) == "it is gone; do this."


@pytest.mark.parametrize("kind", [OptionError, SetupError])
def test_a_wrong_option_or_schema_is_the_program_s_fault_and_no_sink_is_away(
    kind: type[Exception],
) -> None:
    wrapped = RuntimeError("the job failed")
    wrapped.__cause__ = of_spark(TASK.format(kind.__name__))
    for raised in (kind("it is gone; do this."), wrapped):
        for found in (ends_query(raised), blameless(raised)):
            assert type(found) is kind
            assert str(found) == "it is gone; do this."
        assert not no_connection(raised)


UNSUITED = """
: java.lang.NoSuchMethodError: 'void org.apache.spark.sql.execution.LogicalRDD.<init>(scala.Seq)'
\tat org.apache.spark.sql.{}.util.StateCache.$anonfun$cachedDs$4(StateCache.scala:85)
"""


def test_a_jar_that_does_not_suit_this_spark_is_the_program_s_fault() -> None:
    of_delta = ends_query(of_spark(UNSUITED.format("delta")))
    assert type(of_delta) is SetupError
    assert "NoSuchMethodError: void org.apache.spark.sql.execution.LogicalRDD.<init>)" in str(
        of_delta
    )
    assert f"{DELTA[0].organisation}:{DELTA[0].name}, needs Spark" in str(of_delta)
    pin = DELTA[0].name.removeprefix("delta-spark_").partition("_")[0]
    assert str(of_delta).endswith(f"needs Spark {pin}: pip install 'pyspark=={pin}.*'.")
    of_another = ends_query(of_spark(UNSUITED.format("other")))
    assert str(of_another).endswith("LogicalRDD.<init>); use one that is built for it.")
    for said in (
        "java.lang.NoClassDefFoundError: Could not initialize class shop.Sink",  # it was away
        "ValueError: a record says java.lang.NoSuchMethodError: x",
        "java.lang.IllegalArgumentException: x",
    ):
        assert ends_query(of_spark(said)) is None
    assert ends_query(ValueError(UNSUITED)) is None, "the handler's own"


@pytest.mark.parametrize("kind", [RejectionError, TooManyRejectedError, ValueError])
def test_what_a_handler_rejects_wrongly_does_not_end_the_query(kind: type[Exception]) -> None:
    assert ends_query(kind("More than 3 records are rejected.")) is None


WHILE_READING = "It happened while Headrace read the source, or a schema."
READ = f"headrace.errors.{{}}: it is gone; do this.\n{WHILE_READING}\n"


@pytest.mark.parametrize("kind", [BrokerError, SourceError, JournalError, LedgerError])
def test_what_was_raised_while_a_task_read_is_distinguished_from_what_the_sink_raised(
    kind: type[Exception],
) -> None:
    wrapped = RuntimeError("the job failed")
    wrapped.__cause__ = of_spark(f"Traceback:\n{READ.format(kind.__name__)}")
    found = unreached(wrapped)
    assert type(found) is kind
    assert str(found) == "it is gone; do this."
    assert unreached(of_spark(TASK.format(kind.__name__))) is None, "of a sink, perhaps"
    assert unreached(kind("it is gone; do this.")) is None, "the handler's own"


def test_whatever_is_raised_while_a_task_reads_is_a_source_that_is_not_reached() -> None:
    for said in ("OSError: no\nroute", "KeyError: 7", "numpy.Odd"):
        text = f"Traceback:\n{said}\n{WHILE_READING}\n"
        assert type(unreached(of_spark(text))) is SourceError


def test_what_a_handler_says_by_itself_is_its_own() -> None:
    said = ValueError("a bad record:\nheadrace.errors.DataLossError: it says so")
    assert ends_query(said) is None
    assert ends_query(LedgerError("it is locked")) is None
    assert ends_query(of_spark(TASK.format("BrokerError"))) is None
    in_a_line = of_spark("ValueError: bad: headrace.errors.DataLossError: it says so")
    assert ends_query(in_a_line) is None


class Thrown:
    """A Java exception, as Py4J represents it."""

    _target_id = "o1"

    def __init__(self, words: str) -> None:
        self.words = words

    def __str__(self) -> str:
        return self.words


def test_a_batch_that_is_cut_off_says_so_in_words_that_spark_looks_for() -> None:
    with pytest.raises(InterruptedError) as caught, shorten_interrupts():
        raise Py4JJavaError("", Thrown("java.lang.InterruptedException"))
    # From Spark's StreamExecution.PROXY_ERROR, without the exception that was raised before.
    sought = "py4j.protocol.Py4JJavaError: An error occurred while calling.*InterruptedException"
    assert re.search(sought, str(caught.value))
    assert len("".join(traceback.format_exception(caught.value))) < 2000
    with pytest.raises(Py4JJavaError), shorten_interrupts():
        raise Py4JJavaError("", Thrown("java.lang.OutOfMemoryError"))
    with pytest.raises(InterruptedError, match=sought), shorten_interrupts(lambda: True):
        raise ValueError("a text of a thousand lines\n" * 1_000)


FULL = OSError(errno.ENOSPC, "No space left on device")
OF_SPARK = of_spark("Job aborted: java.io.IOException: No space left on device")
IS_AWAY = OperationalError("SELECT 1", {}, OSError("it does not answer"))
REFUSED = IntegrityError("INSERT", {}, ValueError("a key is there twice"))


def of_the_ledger(cause: Exception | None) -> LedgerError:
    error = LedgerError("The ledger failed.")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "raised", [FULL, OF_SPARK, of_the_ledger(IS_AWAY), Py4JNetworkError("nobody answers")]
)
def test_what_the_machinery_raises_says_nothing_of_the_records(raised: Exception) -> None:
    wrapped = RuntimeError("cannot write")
    wrapped.__cause__ = raised
    for each in (raised, wrapped):
        found = blameless(each)
        assert isinstance(found, MachineryError)
        assert "which says nothing of the records" in str(found)
        assert blameless(found) is found


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("No space left on device, says a record"),
        OSError(errno.ECONNREFUSED, "the sink is away"),
        of_the_ledger(REFUSED),
        of_the_ledger(None),
    ],
)
def test_what_may_be_the_records_fault_is_not_excused(raised: Exception) -> None:
    assert blameless(raised) is None


class Unreached(Exception):  # noqa: N818  (as the databases' drivers name theirs)
    """Exception of a client that is no package of ours."""


Unreached.__name__ = "OperationalError"

TASK_OF_A_SINK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "sink.py", line 1, in write
{}
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError("reset"), True),
        (TimeoutError("too slow"), True),
        (Unreached("the server closed the connection"), True),
        (of_spark(TASK_OF_A_SINK.format("requests.exceptions.ConnectionError: refused")), True),
        (of_spark("Caused by: java.net.ConnectException: Connection refused"), True),
        (ValueError("ConnectionError: in a record"), False),
        (of_spark(TASK_OF_A_SINK.format("ValueError: ConnectionError: in a record")), False),
    ],
)
def test_an_exception_that_says_that_something_was_not_reached_is_known(
    error: Exception, expected: bool
) -> None:
    assert no_connection(error) is expected


def _of_requests(verify: ssl.SSLCertVerificationError) -> Exception:
    error = OSError(f"HTTPSConnectionPool(host='127.0.0.1', port=1): ({verify!r})")
    error.__context__ = verify
    return error


_UNTRUSTED = ssl.SSLCertVerificationError(
    1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
)


@pytest.mark.parametrize(
    "error",
    [
        _UNTRUSTED,
        URLError(_UNTRUSTED),
        _of_requests(_UNTRUSTED),
        type("OperationalError", (Exception,), {})("SSL error: certificate verify failed"),
        PythonException(
            message="Traceback (most recent call last):\nssl.SSLCertVerificationError: [SSL:"
            " CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1006)\n"
        ),
        PythonException(
            message=": javax.net.ssl.SSLHandshakeException: PKIX path building failed: unable to"
            " find valid certification path\n\tat x\n"
        ),
    ],
)
def test_a_certificate_that_is_not_trusted_is_a_setting_and_no_outage(error: Exception) -> None:
    """Seen: waited for for ever where requests raised it, deferred where urllib did."""
    ended = ends_query(error)
    assert isinstance(ended, SetupError)
    assert "is not trusted, which is a setting" in str(ended)


def test_a_record_that_speaks_of_certificates_is_no_setting() -> None:
    assert ends_query(ValueError("CERTIFICATE_VERIFY_FAILED is no amount")) is None
