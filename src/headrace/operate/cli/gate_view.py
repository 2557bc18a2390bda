"""Views of gates for the terminal, readable also without colours and in a pipe."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.operate.cli import printing as out
from headrace.operate.status import words
from headrace.operate.status.facts import Column
from headrace.operate.status.needs import headline, since
from headrace.operate.status.parts import (
    BatchSnapshot,
    IsolatingSnapshot,
    PartitionSnapshot,
    ReceiverSnapshot,
)
from headrace.operate.status.snapshot import ARROWS, GATE_COLUMNS, GateSnapshot
from headrace.operate.status.states import Need, NeedGroup, ReceiverState, Urgency, Where, grouped
from headrace.operate.status.trends import Trend
from headrace.operate.status.words import SHORT

BATCHES: Final = 6
"""The view shows at most this many batches of a gate, each with a bar for its duration."""

PARTITIONS: Final = 8
"""The table of a gate's partitions has at most this many rows. If there are more partitions, the
last row is the sum of the partitions that have no row."""

NEEDS: Final = 5
"""The view shows at most this many needs (problems) of a gate. A last line counts further needs."""

WIDE: Final = 100
"""An overview has all columns on a terminal of at least this width (characters)."""

_URGENT: Final = {
    Urgency.NOW: "bold red",
    Urgency.SOON: "red",
    Urgency.WATCH: "yellow",
    Urgency.FINE: "default",
}
_OWN_SENTENCES: Final = {"bad records", "failing wholes", "new checkpoint"}
"""Kinds of needs (problems) whose sentences are never cut."""
_MOST_NAME: Final = 18
"""Largest width of a gate's name in a narrow overview (characters)."""
_DRAIN_TRENDS: Final = {
    Trend.FALLING: "getting shorter",
    Trend.STEADY: "staying so",
    Trend.RISING: "getting longer",
}


@dataclass(frozen=True, slots=True)
class GateView:
    """View of one gate in full: at most 38 lines on a terminal of at least 80 characters."""

    snapshot: GateSnapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _panel(self.snapshot, options.max_width)


def _panel(snapshot: GateSnapshot, width: int) -> Panel:
    parts: list[RenderableType] = [
        out.Shortened(headline(snapshot), f"bold {snapshot.state.colour}", lines=3),
        *_needs(snapshot),
        Text(),
        _facts(snapshot),
    ]
    if snapshot.batches:
        parts += [Text(), _durations(snapshot)]
    if snapshot.partitions:
        parts += [Text(), _partitions(snapshot)]
    title = (snapshot.gate, snapshot.source, f"every {words.duration(snapshot.interval_ms)}")
    query = snapshot.query
    ended = "ended" if query and query.ended_ms is not None else ""
    behind = filter(None, [ended, query.program, query.checkpoint]) if query else ()
    return Panel(
        Group(*parts),
        title=out.line(out.fitting(title, width - 6), style="bold"),
        title_align="left",
        subtitle=out.line(out.fitting(behind, width - 6), style="dim"),
        subtitle_align="right",
        border_style="dim",
        padding=(0, 1),
    )


def needs_view(needs: Sequence[Need], most: int) -> RenderableType:
    """Return a view of needs (problems): a sentence and a command for each need.

    If there are more than ``most`` needs, all needs of one kind share a sentence, and the view
    shows at most ``most`` sentences.
    """
    if len(needs) <= most:
        return Group(*(line for need in needs for line in _need(need)))
    groups = grouped(needs)
    shown = [line for group in groups[:most] for line in _group(group)]
    if left := sum(len(group.needs) for group in groups[most:]):
        shown.append(out.line(f"and {left} more, less urgent", style="yellow"))
    return Group(*shown)


def _need(need: Need) -> Iterator[RenderableType]:
    yield Text(words.printable(f"{need.about}: {need.sentence}"), style=_URGENT[need.urgency])
    yield _command(need)


def _group(group: NeedGroup) -> Iterator[RenderableType]:
    worst = group.needs[0]
    if len(group.needs) == 1:
        yield from _need(worst)
        return
    names = ", ".join(dict.fromkeys(need.about for need in group.needs))
    yield out.line(f"{group.sentence.rstrip('.')}: {names}", style=_URGENT[group.urgency])
    yield _command(group)


def _needs(snapshot: GateSnapshot) -> Iterator[RenderableType]:
    sentence = headline(snapshot)
    for need in sorted(snapshot.needs, key=lambda item: item.sentence != sentence)[:NEEDS]:
        style = _URGENT[need.urgency]
        # Only errors are cut: their messages may have any length.
        whole = need.kind in _OWN_SENTENCES or need.where is Where.RECEIVERS
        if whole or need.sentence in snapshot.advice:
            yield Text(words.printable(need.sentence), style=style)
        elif need.sentence != sentence:
            yield out.Shortened(need.sentence, style, lines=2)
        yield _command(need)
    if len(snapshot.needs) > NEEDS:
        yield out.line(f"and {len(snapshot.needs) - NEEDS} more; see --json", style="yellow")


def _command(need: Need | NeedGroup) -> Padding:
    # Wrapped and never cut, because operators paste the command.
    return Padding(Text(words.printable(need.command), style="dim", overflow="fold"), (0, 0, 0, 2))


@dataclass(frozen=True, slots=True)
class Overview:
    """View of several gates, one line each; a narrow terminal shows fewer columns."""

    snapshots: Sequence[GateSnapshot]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        columns = [
            (_header(column, wide=wide), partial(_cell, column, wide=wide))
            for column in GATE_COLUMNS
            if column.in_table == "always" or (wide and column.in_table == "wide")
        ]
        yield out.table(self.snapshots, *columns)


def _header(column: Column, *, wide: bool) -> str:
    if column is GATE_COLUMNS[-1]:
        return f"*{column.header}"
    mark = ">" if column.is_number else ""
    most = f"|{_MOST_NAME}" if column.header == "gate" and not wide else ""
    return f"{mark}{column.header}{most}"


def _cell(column: Column, snapshot: GateSnapshot, *, wide: bool) -> Text:
    text = column.text if wide or column.narrow is None else column.narrow
    styles = {"gate": "bold", "state": snapshot.state.colour}
    return out.line(text(snapshot), style=styles.get(column.header, ""))


def overview(snapshots: Sequence[GateSnapshot], others: int = 0) -> RenderableType:
    """Return a view with a line for each gate; ``others`` is the number of gates left out."""
    hint = "headrace status GATE shows one of them in full."
    if others:
        hint = f"and {words.plural(others, 'other gate')}, less urgent. {hint}"
    return Group(Overview(snapshots), Text(), out.line(hint, style="dim"))


def _facts(snapshot: GateSnapshot) -> Table:
    def row(name: str, value: str, *details: str) -> tuple[RenderableType, ...]:
        texts = [fact for fact in details if fact and words.UNKNOWN not in fact]
        return Text(name, style="dim"), Text(value, style="bold"), out.Facts(tuple(texts))

    return out.grid((row(*fact) for fact in _named_facts(snapshot)), "lr*")


def _named_facts(snapshot: GateSnapshot) -> Iterator[tuple[str, ...]]:
    lag = snapshot.lag if snapshot.lag_now is None else snapshot.lag_now
    yield "lag", words.count(lag), *_lag_details(snapshot)
    longer = snapshot.drain_trend if snapshot.left_over else None
    trend = f"{ARROWS[longer]} {_DRAIN_TRENDS[longer]}" if longer else ""
    if snapshot.drain_s is not None or not _has_ended(snapshot):
        yield "drained in", words.drained_in(snapshot.drain_s), trend
    processed = f"processed at {words.count(snapshot.processing_rate_per_s)}/s"
    terms = {"P": snapshot.proportional, "I": snapshot.integral, "D": snapshot.derivative}
    signed = (f"{letter} {words.signed(term)}" for letter, term in terms.items())
    yield "rate", f"{words.count(snapshot.rate_per_s)}/s", processed, *signed
    if snapshot.fixed_ms is not None:
        yield "batch cost", words.duration(round(snapshot.fixed_ms)), *_cost_details(snapshot)
    newest = snapshot.newest
    limited = f"limited by: {snapshot.reason}" if snapshot.reason else ""
    planned = f"planned {since(snapshot, newest.planned_ms if newest else None)} ago"
    if snapshot.operator_limits is not None:
        yield "operator", "", snapshot.operator_limits
    if snapshot.ceiling is not None:
        most = snapshot.ceiling_records
        yield "ceiling", words.count(most), "records in a batch" if most else "", snapshot.ceiling
    yield "last batch", words.count(newest.records if newest else None), "records", limited, planned
    if snapshot.isolating is not None:
        yield "isolating", words.count(snapshot.isolating.runs), *_isolating(snapshot.isolating)
    present = [
        receiver for receiver in snapshot.receivers if receiver.state is not ReceiverState.SILENT
    ]
    if present:
        yield "receivers", words.count(len(present)), *_receiving(present)


def _cost_details(snapshot: GateSnapshot) -> list[str]:
    details = ["before its first record"]
    if snapshot.record_us is not None:
        details.append(f"{words.fine_duration(snapshot.record_us / 1000)} a record")
    if snapshot.noise is not None:
        details.append(f"noise {snapshot.noise:.0%}")
    if snapshot.cost_changed_ms is not None:
        details.append(f"changed {since(snapshot, snapshot.cost_changed_ms)} ago")
    return details


def _lag_details(snapshot: GateSnapshot) -> list[str]:
    trend, change = snapshot.lag_trend, snapshot.lag_change_per_s
    moving = "" if trend is None else f"{ARROWS[trend]} {trend}"
    if change is not None and trend is not Trend.STEADY and round(abs(change)):
        moving += f" {words.count(abs(change))}/s"
    old = ""
    if snapshot.lag_now is not None:
        old = "now"
    elif snapshot.lag_is_old or (snapshot.lag is None and snapshot.left_over == 0):
        before = "" if snapshot.lag is not None else "none was left "
        old = f"{before}{words.duration(snapshot.lag_age_ms)} ago"
    oldest = ""
    if snapshot.lag_seconds:
        oldest = f"oldest {words.duration(snapshot.lag_seconds * 1000)}"
    kept = ""
    if snapshot.retention_left_s is not None:
        kept = f"deleted in {words.duration(snapshot.retention_left_s * 1000)}"
    arriving = f"arriving {words.count(snapshot.arrival_rate_per_s)}/s"
    return [
        old,
        moving,
        oldest,
        kept,
        arriving,
        f"admitted {words.count(snapshot.throughput_per_s)}/s",
    ]


def _isolating(found: IsolatingSnapshot) -> list[str]:
    return ["runs", f"{words.count(found.left)} of {words.plural(found.records, 'record')} left"]


def _receiving(present: Sequence[ReceiverSnapshot]) -> list[str]:
    details = [f"taking in {words.count(sum(receiver.records_per_s for receiver in present))}/s"]
    limits = [receiver.limit_per_s for receiver in present if receiver.limit_per_s is not None]
    if len(limits) == len(present):
        details.append(f"at most {words.count(sum(limits))}/s")
    numbers = Counter(receiver.state for receiver in present)
    return details + [
        str(state) if numbers[state] == len(present) else f"{numbers[state]} {state}"
        for state in (ReceiverState.REFUSING, ReceiverState.LIMITED, ReceiverState.IDLE)
        if numbers[state]
    ]


def _durations(snapshot: GateSnapshot) -> Table:
    shown = snapshot.batches[:BATCHES]
    longest_ms = 2 * snapshot.interval_ms
    while longest_ms < max(batch.duration_ms for batch in shown):
        longest_ms *= 2
    history = [batch.duration_ms for batch in reversed(snapshot.batches[:40])]
    curve = out.sparkline(history, highest=2 * snapshot.interval_ms)
    title = out.line(f"│ = {words.duration(snapshot.interval_ms)}   ", style="dim")
    names = [out.line(name, style="dim") for name in ("batch", "key", "records", "time")]
    rows: list[tuple[RenderableType, ...]] = [(*names, title.append(curve, style="cyan"))]
    for batch in shown:
        bar = out.duration_bar(batch.duration_ms, snapshot.interval_ms, longest_ms)
        took = words.duration(batch.duration_ms)
        key = out.line(batch.key[:SHORT])
        rows.append((_batch_name(batch), key, words.count(batch.records), took, bar))
    return out.grid(rows, "llrr*")


def _batch_name(batch: BatchSnapshot) -> Text:
    number = out.batch_number(batch.id)
    if batch.status == "success":
        return Text(number)
    word = batch.status.replace("in_progress", "running")
    return Text(f"{number} {word}".strip(), style="bold" if batch.running else "bold red")


def _has_ended(snapshot: GateSnapshot) -> bool:
    """Whether a gate's query has ended, or the query's process gives no sign of life."""
    query = snapshot.query
    return snapshot.ended_ms is not None or (query is not None and query.ended_ms is not None)


def _partitions(snapshot: GateSnapshot) -> Table:
    """Return a table of the last batch's partitions, with bars for their lags.

    If the query has ended, the table shows the number of records that the batch left in each
    partition, instead of the partition's lag.
    """
    partitions = snapshot.partitions
    ended = _has_ended(snapshot)
    shown, rest = list(partitions), list[PartitionSnapshot]()
    if len(shown) > PARTITIONS:
        by_lag = sorted(partitions, key=lambda p: (-(p.lag or 0), -p.admitted))
        shown, rest = by_lag[: PARTITIONS - 1], by_lag[PARTITIONS - 1 :]
    names = (
        "partition",
        "left" if ended else "lag",
        "admitted",
        "█ admitted  ░ waiting",
        "limited by",
    )
    rows: list[tuple[RenderableType, ...]] = [tuple(out.line(name, style="dim") for name in names)]
    longest = max((p.admitted if p.lag is None else p.lag for p in shown), default=1)
    for item in shown:
        lag = item.admitted if item.lag is None else item.lag
        bar = out.lag_bar(lag, item.admitted, longest)
        reason = out.line(item.reason or words.UNKNOWN, style="dim")
        name = out.line(f"{item.topic}-{item.partition}")
        waits = words.count(item.left if ended else item.lag)
        rows.append((name, waits, words.count(item.admitted), bar, reason))
    if rest:
        lags = [p.left if ended else p.lag for p in rest]
        lengths = [item for item in lags if item is not None]
        label = out.line(f"and {words.plural(len(rest), 'other')}", style="dim")
        admitted = sum(p.admitted for p in rest)
        rows.append((label, words.count(sum(lengths) if lengths else None), words.count(admitted)))
    made = out.grid(rows, "lrr*l")
    made.columns[0].max_width = 34
    return made
