from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.samples import a_batch

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError
from headrace.ledger import ErrorReport, schedule_id
from headrace.ledger.records import MAX_MESSAGE_LENGTH, MAX_TRACE_LENGTH


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_exception_is_described_by_its_class_message_and_trace() -> None:
    report = ErrorReport.of(raised(DataLossError("offsets 3 to 5 are gone")))
    assert report.error_class == "headrace.errors.DataLossError"
    assert report.message == "offsets 3 to 5 are gone"
    assert report.trace.startswith("Traceback (most recent call last)")
    assert "in raised" in report.trace


def test_a_builtin_exception_is_named_as_a_user_writes_it() -> None:
    assert ErrorReport.of(KeyError("a")).error_class == "KeyError"


def test_the_trace_shows_the_cause() -> None:
    error = raised(ValueError("later"))
    error.__cause__ = raised(KeyError("sooner"))
    assert "KeyError: 'sooner'" in ErrorReport.of(error).trace


def test_a_long_message_keeps_its_beginning_and_a_long_trace_its_end() -> None:
    report = ErrorReport.of(raised(ValueError("begin" + "x" * 50_000 + "end")))
    assert report.message.startswith("begin")
    assert len(report.message) == MAX_MESSAGE_LENGTH
    assert report.trace.endswith("end\n")
    assert len(report.trace) == MAX_TRACE_LENGTH


def test_an_exception_that_cannot_be_printed_is_described_all_the_same() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    report = ErrorReport.of(UnprintableError())
    assert report.error_class.endswith("UnprintableError")
    assert "str() failed" in report.message


@given(st.text(st.characters(exclude_categories=[]), max_size=50))
def test_a_report_can_be_stored_whatever_is_in_it(text: str) -> None:
    report = ErrorReport(text, text, text)
    for part in (report.error_class, report.message, report.trace):
        assert "\x00" not in part
        part.encode("utf-8")


def test_a_batch_is_named_by_what_it_reads() -> None:
    ranges = [OffsetRange("a", 0, 0, 5), OffsetRange("b", 1, 7, 7)]
    batch = a_batch(*ranges, gate="g", run_id="r")
    assert batch.schedule_id == schedule_id("g", "r", ranges)
    assert batch.records == 5
