"""The commands by name."""

import typer

from headgate.cli.demo.command import demo
from headgate.cli.doctor import doctor
from headgate.cli.status import status

app = typer.Typer(
    name="headgate",
    help="Backpressure and zero loss for PySpark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(status)
app.command()(doctor)


@app.callback()
def headgate() -> None:
    """Backpressure and zero loss for PySpark Structured Streaming."""
