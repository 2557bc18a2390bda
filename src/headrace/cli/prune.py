"""``headrace prune``: deletes old history."""

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.printing import plural, print_json
from headrace.cli.shared_options import DEFAULT_LEDGER, AsJson, LedgerUrl
from headrace.core.options import age_ms
from headrace.core.timing import wall_clock_ms
from headrace.ledger import Ledger


def prune(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Keep what ended since: '30 days', '12h'.")
    ],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Delete batches that ended long ago, and rates that old, of all gates of a ledger.

    Whatever is not processed, or is dead and unresolved, stays at any age; so do losses, the
    newest batch of each gate, and what headrace verify needs to find a gap or an overlap.
    It may be done while queries run.
    """
    kept_ms = age_ms("--older-than", older_than)
    # Only an existing ledger can be pruned: none is created here.
    Ledger.open(ledger, create=False).close()
    with Ledger.open(ledger) as opened:
        pruned = opened.history.prune(wall_clock_ms() - kept_ms)
    if as_json:
        print_json(asdict(pruned))
    else:
        typer.echo(
            f"Deleted: {plural(pruned.batches, 'batch')} and {plural(pruned.rates, 'rate')}."
        )
