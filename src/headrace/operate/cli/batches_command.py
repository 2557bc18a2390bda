"""``headrace batches`` lists the batches of gates; ``headrace prune`` deletes old batches."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.core.options import age_ms
from headrace.core.timing import is_in_force, wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import (
    FAILS_AS_A_WHOLE,
    BatchRecord,
    ErrorReport,
    Ledger,
    Loss,
    PlannedRange,
    Status,
    lost_records,
    redact_url,
)
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.printing import show_or_watch
from headrace.operate.status import words
from headrace.operate.status.states import batch_time_ms
from headrace.operate.status.words import SHORT

_DIGITS: Final = re.compile("[0-9a-f]{4,32}")
_COMMITTED: Final = "Already committed; an error that was raised after the commit changed nothing:"
_NO_LOSSES: Final[Mapping[str, Sequence[Loss]]] = {}
_NO_NUMBERS: Final[Mapping[str, int]] = {}
_STYLES: Final = {
    Status.SUCCESS: "green",
    Status.IN_PROGRESS: "bold",
    Status.BACKFILLING: "yellow",
    Status.FAILED: "bold red",
    Status.DEAD: "bold red",
}


GateOrKey = Annotated[
    str | None,
    typer.Argument(
        metavar="GATE|KEY",
        help="Show only this gate; or show the batch whose key is this, or begins with this, in"
        " full.",
        autocompletion=opt.complete_gates,
    ),
]
Statuses = Annotated[
    list[Status] | None,
    typer.Option(
        metavar="STATUS",
        help=f"Show only batches with this status: {', '.join(Status)}; can be repeated.",
    ),
]


@opt.sharing(opt.Listing)
def batches(listing: opt.Listing, *, word: GateOrKey = None, status: Statuses = None) -> None:
    """List the newest batches, or show one batch in full.

    A KEY is a batch's key, or its first 4 or more hexadecimal digits.
    A word that is a gate and also a KEY is refused, unless another option requires a gate.
    In JSON, times are milliseconds since the epoch.
    """
    filtered = any((status, listing.since, listing.until))
    url = listing.ledger
    with Ledger.open(url, create=False) as opened:
        chosen = None
        if word is not None:
            chosen = gate_or_batch(opened, word, url, is_gate=filtered or listing.watch)
        if isinstance(chosen, BatchRecord):
            _show_one(opened, chosen, as_json=listing.as_json)
            return
        gate = chosen

        def draw(_height: int | None) -> RenderableType | None:
            now_ms = wall_clock_ms()
            since_ms, until_ms = listing.window_ms(now_ms)
            gates = opt.gates_of(opened, gate, url)
            rows = opened.batches.newest(
                gate,
                listing.limit + 1,
                statuses=status or (),
                since_ms=since_ms,
                until_ms=until_ms,
            )
            shown = rows[: listing.limit]
            keys = [batch.batch_key for batch in shown]
            losses = opened.history.losses_of(keys)
            rejected = opened.dead_letters.count_rejected(keys)
            if listing.as_json:
                for batch in shown:
                    out.print_json(_with_missing(batch, losses, rejected))
                return None
            if not shown:
                is_some = filtered or gate is not None
                return Text(
                    "There is no such batch." if is_some else "The ledger has no batch yet."
                )
            several = len(gates) > 1
            view = batches_view(
                shown,
                now_ms,
                name_gates=several,
                losses=losses,
                rejected=rejected,
                reported_ms=opened.rates.reported_ms(shown),
            )
            return Group(view, *out.if_more(len(rows), listing.limit, "newest"))

        show_or_watch(draw, watch=listing.watch)


def gate_or_batch(ledger: Ledger, word: str, url: str, *, is_gate: bool) -> str | BatchRecord:
    """Return the gate whose name is ``word``, or else the batch whose key begins with ``word``.

    For a batch, ``word`` has 4 to 32 hexadecimal digits. With ``is_gate``, it must be a gate,
    because other options require a gate. Raise OptionError if nothing matches. Without ``is_gate``,
    raise it too if a gate and a batch match.
    """
    digits = word.strip().lower()
    keys = ledger.batches.with_prefix(digits) if _DIGITS.fullmatch(digits) else ()
    gates = ledger.gates.all()
    if any(record.name == word for record in gates):
        if keys and not is_gate:
            raise OptionError(
                f"{word!r} is a gate, and also begins the key of batch {keys[0].batch_key}; to"
                " select the batch, give more digits; to select the gate, add a filter such as"
                " --since 2000-01-01."
            )
        return word
    if keys and is_gate:
        raise OptionError(
            f"{word!r} is the key of one batch, which cannot be combined with --all, --watch or a"
            " filter such as --since; leave these options out."
        )
    if not keys:
        raise OptionError(
            f"The ledger {redact_url(url)} has no gate {word!r}; the gates it has:"
            f" {opt.listed(gates)}. No batch has a key that begins with {word!r} either (4 to 32"
            " hexadecimal digits); `headrace batches` lists the newest batches."
        )
    return find_batch(ledger, word, url)


def find_batch(ledger: Ledger, key: str, url: str) -> BatchRecord:
    """Return the batch whose key begins with ``key``; raise OptionError for none or several."""
    digits = key.strip().lower()
    matches = ledger.batches.with_prefix(digits) if _DIGITS.fullmatch(digits) else ()
    if len(matches) == 1:
        return matches[0]
    where = f"The ledger {redact_url(url)}"
    if matches:
        several = " and ".join(batch.batch_key for batch in matches)
        raise OptionError(
            f"{where} has several batches whose key begins with {key!r}, such as {several}; "
            "give more digits."
        )
    raise OptionError(
        f"{where} has no batch {key!r}; `headrace batches` lists the ledger's batches with their"
        " keys."
    )


def _show_one(ledger: Ledger, batch: BatchRecord, *, as_json: bool) -> None:
    ranges = ledger.batches.ranges(batch.batch_key)
    keys = [batch.batch_key]
    losses = ledger.history.losses_of(keys)
    rejected = ledger.dead_letters.count_rejected(keys)
    if not as_json:
        now_ms = ledger.database_time_ms()
        reported = ledger.rates.reported_ms([batch])
        out.show(batch_view(batch, ranges, losses, now_ms, rejected=rejected, reported_ms=reported))
        return
    own = losses.get(batch.batch_key, ())
    out.print_json(
        {
            **_with_missing(batch, losses, rejected),
            "ranges": [out.flat(item) for item in ranges],
            "losses": [{**asdict(loss.offsets), "reason": loss.reason} for loss in own],
        }
    )


def batch_values(batch: BatchRecord) -> dict[str, Any]:
    """Return a batch for JSON, with the additional fields ``records_left`` and ``interrupted``."""
    row = asdict(batch)
    del row["progress"]
    return {**row, "records_left": batch.records_left, "interrupted": batch.interrupted}


def _with_missing(
    batch: BatchRecord, losses: Mapping[str, Sequence[Loss]], rejected: Mapping[str, int]
) -> dict[str, Any]:
    key = batch.batch_key
    lost = lost_records(losses.get(key, ()))
    return {**batch_values(batch), "lost": lost, "rejected": rejected.get(key, 0)}


def batches_view(
    batches: Sequence[BatchRecord],
    now_ms: int,
    *,
    name_gates: bool,
    losses: Mapping[str, Sequence[Loss]] = _NO_LOSSES,
    rejected: Mapping[str, int] = _NO_NUMBERS,
    reported_ms: Mapping[str, int] = _NO_NUMBERS,
) -> Table:
    """Return a table with one line for each batch.

    By batch key, ``losses`` has the lost ranges, ``rejected`` the number of rejected records, and
    ``reported_ms`` the duration that Spark reported (ms).
    """

    def remark(batch: BatchRecord) -> RenderableType:
        key = batch.batch_key
        counts = {"lost": lost_records(losses.get(key, ())), "rejected": rejected.get(key, 0)}
        text = "".join(f"{words.plural(n, 'record')} {word} · " for word, n in counts.items() if n)
        if batch.resolution is not None and not text:
            return out.Shortened(f"resolved: {batch.resolution}")
        if batch.error is not None and not batch.interrupted and not text:
            return out.Shortened(_error(batch, batch.error))
        return out.line(text, style="bold red").append_text(_error_or_reason(batch))

    return out.table(
        batches,
        ("batch", lambda batch: out.batch_number(batch.query_batch_id)),
        ("key", key_text),
        ("gate|16", lambda batch: out.line(batch.gate)) if name_gates else None,
        ("planned", lambda batch: words.short_time(batch.created_time_ms)),
        ("status", status_text),
        (">records", lambda batch: words.count(words.planned_or_counted(batch))),
        (">time", lambda batch: words.duration(batch_time_ms(batch, reported_ms, now_ms))),
        ("*error, or limited by", remark),
    )


def batch_view(
    batch: BatchRecord,
    ranges: Sequence[PlannedRange],
    losses: Mapping[str, Sequence[Loss]],
    now_ms: int,
    *,
    rejected: Mapping[str, int] = _NO_NUMBERS,
    reported_ms: Mapping[str, int] = _NO_NUMBERS,
) -> RenderableType:
    """Return the view of one batch in full: facts, ranges, losses and error."""
    facts = (
        (
            Text(name, style="dim"),
            value if isinstance(value, Text) else Text(words.printable(value)),
        )
        for name, value in _facts(batch, rejected.get(batch.batch_key, 0), reported_ms, now_ms)
    )
    shown: list[RenderableType] = [out.grid(facts), Text(), _ranges(ranges)]
    if own := losses.get(batch.batch_key, ()):
        headline = (
            f"{words.plural(lost_records(own), 'record')} lost: gone when this batch read them"
        )
        shown += [Text(), out.line(headline, style="bold red"), _losses(own)]
    if batch.error is not None:
        shown.append(Text())
        if batch.error.is_of_whole:
            shown.append(out.line(f"{FAILS_AS_A_WHOLE}; each whole run ended with:"))
        elif batch.status is Status.SUCCESS:
            shown.append(out.line(_COMMITTED))
        elif batch.resolution is not None:
            shown.append(out.line("Its error, before it was resolved:"))
        shown.append(Text(words.printable(batch.error.error_class), style="bold red"))
        # A trace ends with the message; an error that the engine reports has no trace.
        lines = (batch.error.trace or batch.error.message).splitlines()
        shown += [Text(words.printable(text), overflow="fold") for text in lines]
    return Group(*shown)


def _facts(
    batch: BatchRecord, rejected: int, reported_ms: Mapping[str, int], now_ms: int
) -> Iterator[tuple[str, str | Text]]:
    yield "batch", Text(batch.batch_key, style="bold")
    yield "gate", batch.gate
    yield "checkpoint", batch.checkpoint_id
    yield "status", status_text(batch)
    by_stream = f"{words.count(batch.attempts - batch.backfills)} by the stream"
    yield "attempts", f"{by_stream}, {words.plural(batch.backfills, 'backfill')} that failed"
    if batch.outcome_unknown:
        yield "outcome", "unknown of an interrupted attempt; the sink may have its records"
    yield "planned", words.full_time(batch.created_time_ms, now_ms)
    yield "started", words.full_time(batch.start_time_ms, now_ms)
    yield "ended", words.full_time(batch.end_time_ms, now_ms)
    yield "took", words.duration(batch_time_ms(batch, reported_ms, now_ms))
    processed = None if batch.records is None else batch.records - rejected
    planned = f"{words.count(processed)} processed, {words.count(batch.planned_records)} planned"
    yield "records", planned
    if rejected:
        records = words.plural(rejected, "record")
        yield "rejected", f"{records}; see headrace dead-letters list"
    if batch.progress is not None:
        progress, left = words.count(batch.done_records), words.count(batch.records_left)
        runs = words.plural(batch.parts.runs, "run")
        yield "in parts", f"{progress} records done, {left} left, {runs}"
    yield "limited by", batch.reason
    yield "lag", f"{words.count(batch.lag)} when it was planned"
    yield "rate", f"{words.count(batch.rate_per_s)}/s when it was planned"
    yield (
        "in Spark",
        words.UNKNOWN if batch.query_batch_id is None else f"batch {batch.query_batch_id}",
    )
    if batch.resolution is not None:
        yield "dropped", batch.resolution
    if batch.owner is not None:
        yield "owner", f"{batch.owner} ({owner_word(batch, now_ms)})"
        yield "leased until", words.full_time(batch.lease_until_ms, now_ms)


def _ranges(ranges: Sequence[PlannedRange]) -> Table:
    return out.table(
        ranges,
        ("range", lambda row: out.line(str(row.offsets))),
        (">offsets", lambda row: words.count(row.offsets.count)),
        (">latest", lambda row: words.UNKNOWN if row.latest is None else str(row.latest)),
        ("*limited by", lambda row: out.line(row.reason or words.UNKNOWN)),
    )


def _losses(losses: Sequence[Loss]) -> Table:
    return out.table(
        losses,
        ("range", lambda loss: out.line(str(loss.offsets))),
        (">offsets", lambda loss: words.count(loss.offsets.count)),
        ("*why", lambda loss: out.line(loss.reason or words.UNKNOWN)),
    )


def _error_or_reason(batch: BatchRecord) -> Text:
    if batch.error is None:
        return out.line(batch.reason, style="dim")
    if batch.interrupted:
        return out.line(batch.error.message)
    return out.line(_error(batch, batch.error))


def _error(batch: BatchRecord, error: ErrorReport) -> str:
    already = "already committed, then " if batch.status is Status.SUCCESS else ""
    return already + words.short_error(error)


def status_text(batch: BatchRecord) -> Text:
    """Return a batch's status, with the number of attempts if there were several."""
    times = f" \N{MULTIPLICATION SIGN}{batch.attempts}" if batch.attempts > 1 else ""
    style = "yellow" if batch.interrupted else _STYLES[batch.status]
    return out.line(f"{words.status_word(batch)}{times}", style=style)


def key_text(batch: BatchRecord) -> Text:
    """Return the first 8 digits of a batch's key, by which tables name the batch."""
    return out.line(batch.batch_key[:SHORT])


def owner_word(batch: BatchRecord, now_ms: int) -> str:
    """Return the state of a batch's owner: ``busy``, ``gone``, or ``nobody`` without an owner.

    The owner is busy while its lease is in force, and gone after the lease has expired. ``now_ms``
    is the time by the clock of the ledger's database.
    """
    if batch.owner is None or batch.lease_until_ms is None:
        return "nobody"
    return "busy" if is_in_force(batch.lease_until_ms, now_ms) else "gone"


def prune(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Keep batches and rates that are younger: '30 days', '12h'."
        ),
    ],
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """Delete old batches and old rate samples of all gates from a ledger.

    Unprocessed batches and unresolved dead batches are kept at any age. Losses, the newest batch of
    each gate, and the rows that headrace verify needs to find a gap or an overlap are kept too.
    Queries may run meanwhile.
    """
    kept_ms = age_ms("--older-than", older_than)
    # Only an existing ledger can be pruned: none is created here.
    Ledger.open(ledger, create=False).close()
    with Ledger.open(ledger) as opened:
        batches, rates = opened.history.prune(wall_clock_ms() - kept_ms)
    if as_json:
        out.print_json({"batches": batches, "rates": rates})
    else:
        deleted = words.plural(batches, "batch"), words.plural(rates, "rate")
        typer.echo(f"Deleted: {' and '.join(deleted)}.")
