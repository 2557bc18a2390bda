"""Options that several commands have."""

from typing import Annotated

import typer

Limit = Annotated[
    int,
    typer.Option(metavar="N", help="How many at most.", min=1, max=1_000_000),
]
Since = Annotated[
    str | None,
    typer.Option(help="Planned since then: '2024-11-21 14:00', '2h', '30 minutes ago'."),
]
Until = Annotated[str | None, typer.Option(help="Planned before then.")]
