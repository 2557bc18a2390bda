"""Options that several commands have."""

from typing import Annotated

import typer

Limit = Annotated[
    int,
    typer.Option(metavar="N", help="How many at most.", min=1, max=1_000_000),
]
