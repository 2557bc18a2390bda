"""``headrace batches``: what the gates in a ledger have read, and one batch in full."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from headrace.cli.batches_view import batch_values, batch_view, batches_view
from headrace.cli.choices import Limit, Since, Until
from headrace.cli.status import DEFAULT_LEDGER, LedgerUrl, gates_of
from headrace.cli.times import window_ms
from headrace.errors import OptionError
from headrace.ledger import (
    BatchRecord,
    Kind,
    Ledger,
    Loss,
    PlannedRange,
    Status,
    lost_records,
    redact_url,
)
from headrace.ledger.base import wall_clock_ms

_DIGITS: Final = re.compile("[0-9a-f]{1,32}")


def batches(
    key: Annotated[
        str | None,
        typer.Argument(help="A batch's key, or how it begins: all about this one.", metavar="KEY"),
    ] = None,
    *,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: Annotated[str | None, typer.Option(help="Only of this gate.")] = None,
    status: Annotated[
        list[Status] | None,
        typer.Option(
            metavar="STATUS",
            help=f"Only those that stand so: {', '.join(Status)}; can be repeated.",
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    kind: Annotated[
        Kind | None, typer.Option(metavar="KIND", help="Only those planned by it: live, backfill.")
    ] = None,
    limit: Limit = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per batch, each on a line of its own.")
    ] = False,
) -> None:
    """List the newest batches, or show everything about one.

    Parts of batches that were split (↳) are listed too.
    The time is that of the latest attempt.
    In JSON, times are milliseconds since the epoch.
    """
    now_ms = wall_clock_ms()
    since_ms, until_ms = window_ms(since, until, now_ms)
    filtered = any((gate, status, since, until, kind))
    with Ledger.open(ledger, create=False) as opened:
        if key is not None:
            if filtered:
                raise OptionError(f"KEY is {key!r}, which is one batch; name no filter with it.")
            _show_one(opened, find_batch(opened, key, ledger), as_json=as_json)
            return
        gates = gates_of(opened, gate, ledger)
        found = opened.batches(
            gate,
            limit + 1,
            statuses=status or (),
            since_ms=since_ms,
            until_ms=until_ms,
            kind=kind,
        )
        shown = found[:limit]
        losses = opened.losses_of([batch.schedule_id for batch in shown])
    lost = {key: lost_records(each) for key, each in losses.items()}
    if as_json:
        for batch in shown:
            typer.echo(json.dumps({**batch_values(batch), "lost": lost.get(batch.schedule_id, 0)}))
    elif not shown:
        typer.echo("There is no such batch." if filtered else "The ledger has no batch yet.")
    else:
        Console().print(batches_view(shown, now_ms, name_gates=len(gates) > 1, lost=lost))
        if len(found) > limit:
            typer.echo(f"\nThese are the newest {limit}; --limit shows more.")


def find_batch(ledger: Ledger, key: str, url: str) -> BatchRecord:
    """The one batch whose key begins so.

    Args:
        ledger: Where it is.
        key: Its key, or the first digits of it.
        url: The ledger's, for the error.

    Raises:
        OptionError: There is none, or several.
        LedgerError: The ledger cannot be read.
    """
    digits = key.strip().lower()
    found = ledger.batches_named(digits) if _DIGITS.fullmatch(digits) else ()
    if len(found) == 1:
        return found[0]
    where = f"The ledger {redact_url(url)}"
    if found:
        several = " and ".join(batch.schedule_id for batch in found)
        raise OptionError(
            f"{where} has several batches whose key begins with {key!r}, such as {several}; "
            "give more digits."
        )
    raise OptionError(
        f"{where} has no batch {key!r}; `headrace batches` lists those it has, with their keys."
    )


def _show_one(ledger: Ledger, batch: BatchRecord, *, as_json: bool) -> None:
    ranges, parts = ledger.ranges(batch.schedule_id), ledger.parts(batch.schedule_id)
    losses = ledger.losses_of([each.schedule_id for each in (batch, *parts)])
    if as_json:
        typer.echo(json.dumps(_in_full(batch, ranges, parts, losses)))
    else:
        now_ms = ledger.database_time_ms()
        Console().print(batch_view(batch, ranges, parts, losses, now_ms))


def _in_full(
    batch: BatchRecord,
    ranges: Sequence[PlannedRange],
    parts: Sequence[BatchRecord],
    losses: Mapping[str, Sequence[Loss]],
) -> dict[str, Any]:
    told = []
    for planned in ranges:
        values = asdict(planned)
        told.append({**values.pop("offsets"), **values})
    own = losses.get(batch.schedule_id, ())
    return {
        **batch_values(batch),
        "lost": lost_records(own),
        "ranges": told,
        "losses": [{**asdict(loss.offsets), "reason": loss.reason} for loss in own],
        "parts": [
            {**batch_values(part), "lost": lost_records(losses.get(part.schedule_id, ()))}
            for part in parts
        ],
    }
