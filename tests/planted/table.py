"""All defects that are planted.

A suite can be green because it looks away. Each row is a change of one place that loses, doubles or
mislabels records, breaks a law, shows a secret or misleads an operator.
"""

from collections.abc import Sequence
from typing import Final

from tests.planted.defects import execution, laws, operators, receivers, sources, storage
from tests.planted.plant import Planted

DEFECTS: Final[Sequence[Planted]] = (
    *laws.DEFECTS,
    *storage.DEFECTS,
    *sources.DEFECTS,
    *execution.DEFECTS,
    *receivers.DEFECTS,
    *operators.DEFECTS,
)


def chosen(word: str) -> list[Planted]:
    """The defects that have a word in their row, in any case."""
    wanted = word.lower()
    return [
        defect
        for defect in DEFECTS
        if wanted in f"{defect.module} {defect.what} {defect.tests}".lower()
    ]
