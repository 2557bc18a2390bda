"""How the records that a stage produces are marked: with the attempt that produced them."""

from typing import Final

HEADER: Final = "headgate-batch"
"""The header of the records that a stage has written; its value is that of `tag`."""


def tag(key: str, attempt: str) -> str:
    """What the records of an attempt to write a batch are marked with."""
    return f"{key}/{attempt}"
