"""Dead letters as JSON, and as a table for the terminal."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from headrace.cli.batches_view import new_table, short_error
from headrace.cli.lines import line
from headrace.cli.words import UNKNOWN, duration
from headrace.ledger import DeadLetterRecord


def letter_values(record: DeadLetterRecord) -> dict[str, Any]:
    """A dead letter for JSON, without the record itself; times are ms since the epoch."""
    letter = record.letter
    return {
        "dead_letter_id": record.dead_letter_id,
        "schedule_id": record.schedule_id,
        "gate": record.gate,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.timestamp_ms,
        "timestamp_type": letter.timestamp_type,
        "error": asdict(letter.error),
        "created_ms": record.created_ms,
        "status": record.status,
        "resolved_ms": record.resolved_ms,
        "resolution": record.resolution,
    }


def whole_letter_values(record: DeadLetterRecord) -> dict[str, Any]:
    """A dead letter for JSON, with the record's key, value and headers in base64."""
    headers = record.letter.headers
    return {
        **letter_values(record),
        "key": _base64(record.letter.key),
        "value": _base64(record.letter.value),
        "headers": headers and [[name, _base64(value)] for name, value in headers],
    }


def letters_table(
    records: Sequence[DeadLetterRecord], now_ms: int, *, name_gates: bool, last: str = ""
) -> Table:
    """One line for each dead letter.

    Args:
        records: Which, in this order.
        now_ms: The time.
        name_gates: Whether to say which gate each is of.
        last: What the last column shows: ``value``, ``resolution`` or, if empty, there is none.
    """
    table = new_table()
    table.add_column("id", justify="right", no_wrap=True)
    if name_gates:
        table.add_column("gate", no_wrap=True, max_width=16)
    table.add_column("record", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("error", no_wrap=True, ratio=1)
    if last:
        table.add_column(last, no_wrap=True, ratio=1)
    for record in records:
        letter = record.letter
        details = {
            "value": (letter.value or b"").decode(errors="replace"),
            "resolution": f"{record.status}: {record.resolution or UNKNOWN}",
        }
        table.add_row(
            str(record.dead_letter_id),
            *([line(record.gate)] if name_gates else []),
            line(f"{letter.topic}-{letter.partition} at {letter.offset}"),
            duration(now_ms - record.created_ms),
            line(short_error(letter.error)),
            *([line(details[last])] if last else []),
        )
    return table


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode("ascii")
