"""The commands by name."""

import typer

from headgate.cli.backfill import backfill
from headgate.cli.batches import batches
from headgate.cli.demo.command import demo
from headgate.cli.doctor import doctor
from headgate.cli.drop import drop
from headgate.cli.failures import failures
from headgate.cli.journal import journal
from headgate.cli.journal_prune import prune
from headgate.cli.letters import letters
from headgate.cli.letters_send import send
from headgate.cli.receive import receive
from headgate.cli.status import status
from headgate.cli.verify import verify

app = typer.Typer(
    name="headgate",
    help="Backpressure and zero loss for PySpark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(status)
app.command()(batches)
app.command()(failures)
app.command()(verify)
app.command()(backfill)
app.command()(drop)
letters.command()(send)
app.add_typer(letters, name="letters")
app.add_typer(receive, name="receive")
journal.command()(prune)
app.add_typer(journal, name="journal")
app.command()(doctor)


@app.callback()
def headgate() -> None:
    """Backpressure and zero loss for PySpark Structured Streaming."""
