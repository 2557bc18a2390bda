"""A snapshot as a picture for the terminal, which also reads well without colours and piped."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.cli.bars import DurationBar, LagBar, sparkline
from headrace.cli.lag import Trend
from headrace.cli.lines import line, printable
from headrace.cli.receivers_view import ReceiverState, receivers_line, silent_line
from headrace.cli.sentences import headline, style_of
from headrace.cli.snapshot import BatchSnapshot, GateSnapshot, PartitionSnapshot
from headrace.cli.words import UNKNOWN, count, duration, plural, signed

BATCHES: Final = 6
"""Batches that have a bar of their own."""

PARTITIONS: Final = 8
"""Rows for partitions: beyond it the last of them is for all the others together."""

_ARROWS: Final = {Trend.FALLING: "↓", Trend.STEADY: "→", Trend.RISING: "↑"}
_LONGER_OR_SHORTER: Final = {
    Trend.FALLING: "getting shorter",
    Trend.STEADY: "staying so",
    Trend.RISING: "getting longer",
}


def gate_view(snapshot: GateSnapshot) -> RenderableType:
    """One gate in full: at most 28 lines, from 80 characters wide."""
    parts: list[RenderableType] = [
        line(headline(snapshot), style=f"bold {style_of(snapshot.state)}"),
        Text(),
        _facts(snapshot),
    ]
    if snapshot.batches:
        parts += [Text(), _durations(snapshot)]
    if snapshot.partitions:
        parts += [Text(), _partitions(snapshot.partitions)]
    if trouble := _trouble(snapshot):
        parts.append(line(trouble, style="bold red"))
    parts += [Text(sentence, style="yellow") for sentence in snapshot.advice]
    title = f"{snapshot.gate} · {snapshot.source} · every {duration(snapshot.interval_ms)}"
    return Panel(
        Group(*parts),
        title=line(title, style="bold"),
        title_align="left",
        subtitle=line(_query(snapshot), style="dim"),
        subtitle_align="right",
        border_style="dim",
        padding=(0, 1),
    )


def _query(snapshot: GateSnapshot) -> str:
    """What stands behind the gate."""
    query = snapshot.query
    if query is None:
        return ""
    return " · ".join(filter(None, [query.program, query.checkpoint]))


def overview(snapshots: Sequence[GateSnapshot]) -> RenderableType:
    """Several gates, one line for each."""
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    table.add_column("gate", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("lag", "rate/s", "drained in", "batch", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limited by", no_wrap=True, ratio=1)
    for snapshot in snapshots:
        newest = snapshot.batches[0] if snapshot.batches else None
        table.add_row(
            line(snapshot.gate, style="bold"),
            Text(snapshot.state, style=style_of(snapshot.state)),
            _lag(snapshot),
            count(snapshot.rate_per_s),
            _with_arrow(snapshot.drain_trend, _drained_in(snapshot.drain_s)),
            duration(newest.duration_ms if newest else None),
            duration(snapshot.interval_ms),
            line(snapshot.reason or UNKNOWN),
        )
    advice = [
        Text(printable(f"{snapshot.gate}: {sentence}"), style="yellow")
        for snapshot in snapshots
        for sentence in snapshot.advice
    ]
    hint = line("headrace status --gate NAME shows one of them in full.", style="dim")
    return Group(table, Text(), *advice, hint)


def _lag(snapshot: GateSnapshot) -> str:
    """The lag in a cell; of a gate without new batches what waits now, or how old the figure is."""
    if snapshot.lag_now is not None:
        return f"{count(snapshot.lag_now)} now"
    if snapshot.lag_is_old and snapshot.lag is not None:
        return f"{count(snapshot.lag)} {duration(snapshot.lag_age_ms)} ago"
    return _with_arrow(snapshot.lag_trend, count(snapshot.lag))


def _as_of(snapshot: GateSnapshot) -> list[str]:
    if not snapshot.lag_is_old:
        return []
    now = [] if snapshot.lag_now is None else [f"now {count(snapshot.lag_now)} not begun"]
    return [f"{duration(snapshot.lag_age_ms)} ago", *now]


def _facts(snapshot: GateSnapshot) -> Table:
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, ratio=1)
    trend = snapshot.lag_trend
    moving = "" if trend is None else f"{_ARROWS[trend]} {trend}"
    if trend is not None and snapshot.lag_change_per_s is not None and trend is not Trend.STEADY:
        moving += f" {count(abs(snapshot.lag_change_per_s))}/s"
    table.add_row(
        "lag",
        Text(count(snapshot.lag), style="bold"),
        _details(
            *_as_of(snapshot),
            moving,
            f"arriving {count(snapshot.arrival_rate_per_s)}/s",
            f"admitted {count(snapshot.throughput_per_s)}/s",
        ),
    )
    longer = snapshot.drain_trend if snapshot.left_over else None
    table.add_row(
        "drained in",
        Text(_drained_in(snapshot.drain_s), style="bold"),
        _details(f"{_ARROWS[longer]} {_LONGER_OR_SHORTER[longer]}" if longer else ""),
    )
    table.add_row(
        "rate",
        Text(f"{count(snapshot.rate_per_s)}/s", style="bold"),
        _details(
            f"processed at {count(snapshot.processing_rate_per_s)}/s",
            f"P {signed(snapshot.proportional)}",
            f"I {signed(snapshot.integral)}",
            f"D {signed(snapshot.derivative)}",
        ),
    )
    newest = snapshot.batches[0] if snapshot.batches else None
    table.add_row(
        "last batch",
        Text(count(newest.records if newest else None), style="bold"),
        _details(
            "records", f"limited by: {snapshot.reason}" if snapshot.reason else "", _age(snapshot)
        ),
    )
    present = [each for each in snapshot.receivers if each.state is not ReceiverState.SILENT]
    if present:
        table.add_row(
            "receivers",
            Text(count(len(present)), style="bold"),
            _details(receivers_line(present)),
        )
    return table


def _durations(snapshot: GateSnapshot) -> Table:
    """The newest batches as bars against the interval; all that are known as a sparkline."""
    shown = snapshot.batches[:BATCHES]
    longest_ms = 2 * snapshot.interval_ms
    while longest_ms < max(batch.duration_ms for batch in shown):
        longest_ms *= 2
    history = [batch.duration_ms for batch in reversed(snapshot.batches[:40])]
    curve = sparkline(history, highest=2 * snapshot.interval_ms)
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(ratio=1)
    title = line(f"│ = {duration(snapshot.interval_ms)}   ", style="dim")
    table.add_row(
        Text("batch", style="dim"),
        Text("records", style="dim"),
        Text("time", style="dim"),
        title.append(curve, style="cyan"),
    )
    for batch in shown:
        table.add_row(
            _batch_name(batch),
            count(batch.records),
            duration(batch.duration_ms),
            DurationBar(batch.duration_ms, snapshot.interval_ms, longest_ms),
        )
    return table


def _batch_name(batch: BatchSnapshot) -> Text:
    number = "" if batch.id is None else f"#{batch.id}"
    if batch.status == "success":
        return Text(number)
    word = batch.status.replace("in_progress", "running")
    style = "bold" if batch.running else "bold red"
    return Text(f"{number} {word}".strip(), style=style)


def _partitions(partitions: Sequence[PartitionSnapshot]) -> Table:
    """All partitions in order; of many, those that lag most and one line for the others."""
    shown, rest = list(partitions), list[PartitionSnapshot]()
    if len(shown) > PARTITIONS:
        by_lag = sorted(partitions, key=lambda p: (-(p.lag or 0), -p.admitted))
        shown, rest = by_lag[: PARTITIONS - 1], by_lag[PARTITIONS - 1 :]
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, max_width=34)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(ratio=1)
    table.add_column(no_wrap=True)
    header = ("partition", "lag", "admitted", "█ admitted  ░ waiting", "limited by")
    table.add_row(*(line(name, style="dim") for name in header))
    longest = max((p.admitted if p.lag is None else p.lag for p in shown), default=1)
    for each in shown:
        table.add_row(
            line(f"{each.topic}-{each.partition}"),
            count(each.lag),
            count(each.admitted),
            LagBar(each.admitted if each.lag is None else each.lag, each.admitted, longest),
            line(each.reason or UNKNOWN, style="dim"),
        )
    if rest:
        lags = [p.lag for p in rest if p.lag is not None]
        table.add_row(
            line(f"and {plural(len(rest), 'other')}", style="dim"),
            count(sum(lags) if lags else None),
            count(sum(p.admitted for p in rest)),
        )
    return table


def _trouble(snapshot: GateSnapshot) -> str:
    """What somebody has to look after; nothing on a good day."""
    told = [silent] if (silent := silent_line(snapshot.receivers, snapshot.time_ms)) else []
    if snapshot.lost_records:
        told.append(f"{plural(snapshot.lost_records, 'record')} lost before they were read")
    if snapshot.failed:
        told.append(f"{plural(snapshot.failed, 'failed batch')} to be run again")
    if snapshot.dead:
        told.append(f"{plural(snapshot.dead, 'dead batch')}")
    if snapshot.dead_letters:
        told.append(f"{plural(snapshot.dead_letters, 'dead letter')}")
    if snapshot.failed + snapshot.dead and snapshot.error:
        told.append(snapshot.error)
    if snapshot.failed + snapshot.dead + snapshot.dead_letters:
        told.append("see headrace failures")
    return " · ".join(told)


def _age(snapshot: GateSnapshot) -> str:
    if not snapshot.batches:
        return ""
    age_ms = max(snapshot.time_ms - snapshot.batches[0].planned_ms, 0)
    return f"planned {duration(age_ms)} ago"


def _drained_in(drain_s: float | None) -> str:
    """Nobody needs the tenths of a second of an estimate."""
    if drain_s is None:
        return UNKNOWN
    return duration(round(drain_s) * 1000) if drain_s >= 60 else f"{drain_s:.0f} s"


def _with_arrow(trend: Trend | None, text: str) -> str:
    return text if trend is None else f"{_ARROWS[trend]} {trend} {text}"


def _details(*parts: str) -> Text:
    """What is known of these, beside each other."""
    return line(" · ".join(part for part in parts if part and UNKNOWN not in part))
