"""Findings on a batch with ranges in several partitions, and on one that was cut off."""

from dataclasses import replace

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.error_report import ErrorReport, query_stopped
from headrace.gate.ledger.proof import Finding, FindingKind
from headrace.gate.ledger.transitions import Status
from headrace.operate.status.findings import finding_sentences


def open_findings(*offsets: OffsetRange, interrupted: bool = False) -> list[Finding]:
    error = query_stopped(KeyboardInterrupt()) if interrupted else None
    return [
        Finding(FindingKind.OPEN, each, "run", "abc", status=Status.FAILED, error=error)
        for each in offsets
    ]


def test_partitions_are_counted_and_not_their_ranges() -> None:
    gap = open_findings(
        OffsetRange("orders", 0, 0, 10), OffsetRange("orders", 0, 12, 20), OffsetRange("x", 1, 0, 5)
    )
    ((_, sentence),) = finding_sentences(gap)
    assert sentence == (
        "batch abc with 23 offsets in 3 ranges of 2 partitions, first orders-0 [0, 10), is failed."
    )
    ((_, sentence),) = finding_sentences([gap[0], gap[2]])
    assert "15 offsets in 2 partitions, first" in sentence


def test_a_batch_whose_query_was_stopped_is_interrupted_and_not_failed() -> None:
    cut_off = open_findings(OffsetRange("orders", 0, 0, 10), interrupted=True)
    ((_, sentence),) = finding_sentences(cut_off)
    assert sentence == (
        "batch abc with orders-0 [0, 10) is interrupted: its query was stopped, and its next start"
        " runs it."
    )


def test_a_dead_batch_that_is_resolved_says_why_and_not_what_to_do() -> None:
    error = ErrorReport("ValueError", "compare before you settle it", "")
    offsets = OffsetRange("orders", 0, 0, 10)
    dead = Finding(FindingKind.DEAD, offsets, "run", "abc", status=Status.DEAD, error=error)
    ((_, sentence),) = finding_sentences([dead])
    assert sentence.endswith(" is dead: compare before you settle it (ValueError)")
    ((_, sentence),) = finding_sentences([replace(dead, resolution="all in the sink (Ada)")])
    assert (
        sentence == "batch abc with orders-0 [0, 10) is dead, and resolved: all in the sink (Ada)."
    )
