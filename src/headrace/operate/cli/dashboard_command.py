"""``headrace dashboard``: serves the state of a ledger as web pages."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.operate.cli import shared_options as opt
from headrace.operate.cli.printing import logged

TOKEN_VARIABLE: Final = "HEADRACE_DASHBOARD_TOKEN"  # noqa: S105  # its name


def dashboard(
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    *,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. If other machines reach the address, reading needs the"
            " token too."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free port.")
    ] = 8480,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"File with the token to sign in with; or set {TOKEN_VARIABLE}. Without either, a"
            " token is generated and printed.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another host name under which browsers request the dashboard, such as a proxy's"
            " name; can be repeated.",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")
    ] = None,
    option: opt.SourceOption = None,
    options_file: opt.OptionsFile = None,
) -> None:
    """Show gates, failures, flows and receivers as live web pages, with forms for actions.

    On this machine, reading needs no token. To act, an operator signs in with the token. The ledger
    keeps each action with its author, time and reason.
    --option and --options-file are options of the stream for sending dead letters again.
    Ctrl-C and SIGTERM end the dashboard.
    Exit status 0: Ctrl-C or SIGTERM ended it.
    Exit status 1: there was an error, such as a port that is in use.
    """
    # Imported here, so that the help needs no extra.
    from headrace.operate.dashboard import DashboardSettings, serve  # noqa: PLC0415
    from headrace.operate.dashboard.security import is_loopback, new_token  # noqa: PLC0415

    secret = opt.secret_of(token_file, "--token-file", TOKEN_VARIABLE)
    # A generated token is printed, and valid while this process runs.
    made = new_token() if secret is None and is_loopback(host) else None
    settings = DashboardSettings(
        ledger=ledger,
        host=host,
        port=port,
        token=secret or made,
        allowed_hosts=tuple(allow_host or ()),
        certificate=tls_certificate,
        key=tls_key,
        source_options=opt.source_options(option or (), options_file),
    )

    def started(address: str) -> None:
        typer.echo(f"The dashboard is at {address}")
        if made is not None:
            typer.echo(f"To act there, sign in with the token {made}")
        sys.stdout.flush()

    with logged(sys.stderr, of="headrace.dashboard"):
        serve(settings, started)
