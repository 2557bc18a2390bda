"""A receiver that comes to an end by itself."""

from headrace.journal.receivers import Intake
from headrace.journal.records import Records


class Finite:
    """It hands in two records, and that was all."""

    async def receive(self, intake: Intake) -> None:
        await intake.submit(Records.of([b"the", b"end"], timestamp_ms=1))
