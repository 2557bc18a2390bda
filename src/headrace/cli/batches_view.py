"""Batches as pictures for the terminal, which also read well without colours and piped."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.lines import line, printable
from headrace.cli.snapshot import error_line, status_word
from headrace.cli.times import full_time, short_time
from headrace.cli.words import UNKNOWN, count, duration, plural
from headrace.ledger import (
    BatchRecord,
    ErrorReport,
    Kind,
    Loss,
    PlannedRange,
    Status,
    lost_records,
)
from headrace.ledger.leases import is_in_force

SHORT: Final = 8
"""Digits of a key that are shown in a table; they tell the batches of most ledgers apart."""

_NOTHING: Final[Mapping[str, int]] = {}

_STYLES: Final = {
    Status.SUCCESS: "green",
    Status.IN_PROGRESS: "bold",
    Status.BACKFILLING: "yellow",
    Status.FAILED: "bold red",
    Status.DEAD: "bold red",
}


_COMMITTED: Final = "Already committed; what was raised after that changed nothing of it:"


def batches_view(
    batches: Sequence[BatchRecord],
    now_ms: int,
    *,
    name_gates: bool,
    lost: Mapping[str, int] = _NOTHING,
) -> RenderableType:
    """One line for each batch, in this order.

    Args:
        batches: The batches.
        now_ms: The time.
        name_gates: Whether each has its gate's name.
        lost: How many of its offsets each could not read, by key.
    """
    table = new_table()
    table.add_column("key", no_wrap=True)
    if name_gates:
        table.add_column("gate", no_wrap=True, max_width=16)
    table.add_column("planned", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("error, or limited by", no_wrap=True, ratio=1)
    for batch in batches:
        table.add_row(
            key_text(batch),
            *([line(batch.gate)] if name_gates else []),
            short_time(batch.created_time_ms),
            status_text(batch),
            count(planned_or_counted(batch)),
            duration(took_ms(batch, now_ms)),
            _remark(batch, lost.get(batch.schedule_id, 0)),
        )
    return table


def _remark(batch: BatchRecord, lost: int) -> Text:
    """What there is to say of a batch: what it lost, and why it failed or what limited it."""
    said = line(f"{plural(lost, 'record')} lost · " if lost else "", style="bold red")
    return said.append_text(_error_or_reason(batch))


def _error_or_reason(batch: BatchRecord) -> Text:
    if batch.error is None:
        return line(batch.reason, style="dim")
    if batch.interrupted:
        return line(batch.error.message)
    already = "already committed, then " if batch.status is Status.SUCCESS else ""
    return line(already + short_error(batch.error))


def batch_view(
    batch: BatchRecord,
    ranges: Sequence[PlannedRange],
    parts: Sequence[BatchRecord],
    losses: Mapping[str, Sequence[Loss]],
    now_ms: int,
) -> RenderableType:
    """Everything about one batch; ``losses`` are its own and its parts', by key."""
    shown: list[RenderableType] = [_facts(batch, now_ms), Text(), _ranges(ranges)]
    if own := losses.get(batch.schedule_id, ()):
        told = f"{plural(lost_records(own), 'record')} lost: gone when this batch read them"
        shown += [Text(), line(told, style="bold red"), _losses(own)]
    if parts:
        shown += [Text(), line(f"split into {plural(len(parts), 'part')}", style="bold")]
        lost = {key: lost_records(each) for key, each in losses.items()}
        shown.append(batches_view(parts, now_ms, name_gates=False, lost=lost))
    if batch.error is not None:
        shown.append(Text())
        if batch.status is Status.SUCCESS:
            shown.append(line(_COMMITTED))
        shown += _error(batch.error)
    return Group(*shown)


def batch_values(batch: BatchRecord) -> dict[str, Any]:
    """A batch in JSON: its row, and whether it was interrupted by a stop of its query."""
    return {**asdict(batch), "interrupted": batch.interrupted}


def new_table() -> Table:
    """A table without lines, as wide as the terminal."""
    return Table(expand=True, box=None, pad_edge=False, header_style="dim")


def status_text(batch: BatchRecord) -> Text:
    """Where a batch stands, and how often it was begun where that was more than once."""
    times = f" \N{MULTIPLICATION SIGN}{batch.attempts}" if batch.attempts > 1 else ""
    style = "yellow" if batch.interrupted else _STYLES[batch.status]
    return line(f"{status_word(batch)}{times}", style=style)


def key_text(batch: BatchRecord) -> Text:
    """The first digits of its key, with a sign that it is a part of another one."""
    return line(f"{'' if batch.parent is None else '↳ '}{batch.schedule_id[:SHORT]}")


def short_error(error: ErrorReport) -> str:
    """An error in one line, its class without the module."""
    return error_line(replace(error, error_class=error.error_class.rpartition(".")[2]))


def took_ms(batch: BatchRecord, now_ms: int) -> int:
    """How long the latest attempt took, or has taken until now."""
    began_ms = batch.created_time_ms if batch.start_time_ms is None else batch.start_time_ms
    return max((now_ms if batch.end_time_ms is None else batch.end_time_ms) - began_ms, 0)


def planned_or_counted(batch: BatchRecord) -> int:
    """Its records, or the offsets in it while they have not been counted."""
    return batch.planned_records if batch.records is None else batch.records


def owner_words(batch: BatchRecord, now_ms: int) -> str:
    """Whether somebody works on a batch: ``busy``, ``gone`` or ``nobody``.

    Args:
        batch: the batch.
        now_ms: the time by its ledger's database.
    """
    if batch.owner is None or batch.lease_until_ms is None:
        return "nobody"
    return "busy" if is_in_force(batch.lease_until_ms, now_ms) else "gone"


def _facts(batch: BatchRecord, now_ms: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _named_facts(batch, now_ms):
        table.add_row(name, value if isinstance(value, Text) else Text(printable(value)))
    return table


def _named_facts(batch: BatchRecord, now_ms: int) -> Iterator[tuple[str, str | Text]]:
    yield "batch", Text(batch.schedule_id, style="bold")
    if batch.parent is not None:
        yield "part of", batch.parent
    yield "gate", batch.gate
    yield "run", batch.run_id
    yield "status", status_text(batch)
    by_stream = f"{count(batch.attempts - batch.backfills)} by the stream"
    yield "attempts", f"{by_stream}, {plural(batch.backfills, 'backfill')} that failed"
    if batch.cut_short:
        yield "cut short", "one of its runs was; its sink may have it"
    yield "planned", full_time(batch.created_time_ms, now_ms)
    yield "started", full_time(batch.start_time_ms, now_ms)
    yield "ended", full_time(batch.end_time_ms, now_ms)
    yield "took", duration(took_ms(batch, now_ms))
    yield "records", f"{count(batch.records)} processed, {count(batch.planned_records)} planned"
    yield "limited by", batch.reason
    yield "lag", f"{count(batch.lag)} when it was planned"
    yield "rate", f"{count(batch.rate_per_s)}/s when it was planned"
    yield "in Spark", UNKNOWN if batch.query_batch_id is None else f"batch {batch.query_batch_id}"
    if batch.kind is not Kind.LIVE:
        yield "planned by", batch.kind
    if batch.resolution is not None:
        yield "dropped", batch.resolution
    if batch.owner is not None:
        yield "owner", f"{batch.owner} ({owner_words(batch, now_ms)})"
        yield "leased until", full_time(batch.lease_until_ms, now_ms)


def _ranges(ranges: Sequence[PlannedRange]) -> Table:
    table = new_table()
    table.add_column("range", no_wrap=True)
    table.add_column("offsets", justify="right", no_wrap=True)
    table.add_column("latest", justify="right", no_wrap=True)
    table.add_column("limited by", no_wrap=True, ratio=1)
    for planned in ranges:
        table.add_row(
            line(str(planned.offsets)),
            count(planned.offsets.count),
            UNKNOWN if planned.latest is None else str(planned.latest),
            line(planned.reason or UNKNOWN),
        )
    return table


def _losses(losses: Sequence[Loss]) -> Table:
    table = new_table()
    table.add_column("range", no_wrap=True)
    table.add_column("offsets", justify="right", no_wrap=True)
    table.add_column("why", ratio=1, overflow="fold")
    for loss in losses:
        table.add_row(
            line(str(loss.offsets)), count(loss.offsets.count), line(loss.reason or UNKNOWN)
        )
    return table


def _error(error: ErrorReport) -> Iterator[Text]:
    yield Text(printable(error.error_class), style="bold red")
    # A trace ends with the message; what the engine reports has none.
    for each in (error.trace or error.message).splitlines():
        yield Text(printable(each), overflow="fold")
