"""What this process knows of a handler: what it has processed last, and whether its sink is up."""

import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from headrace.errors import SinkDownError
from headrace.ledger import ErrorReport

_LOOK_S: Final = 0.05
"""How often it is looked whether something has passed."""


class HandlerHealth:
    """Shared by all who call one handler, live and in a backfill. Any thread may use it.

    Args:
        clock: Answers seconds since some moment.

    Attributes:
        passes: How many runs have succeeded with at least one record. A run is counted before the
            next one begins.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.passes = 0
        self._clock = clock
        self._last_s = clock()
        self._changing = threading.Lock()
        self._asking = 0
        self._down: SinkDownError | None = None

    @property
    def down(self) -> SinkDownError | None:
        """Why the sink seems to be down, since an isolation was stopped by it; None if not."""
        return self._down

    def stopped_by(self, last: Exception | ErrorReport) -> SinkDownError:
        """Note that an isolation was stopped: batches that fail are not isolated now."""
        why = ErrorReport.of(last) if isinstance(last, Exception) else last
        first_line = why.message.partition("\n")[0]
        self._down = SinkDownError(
            "The sink seems to be down, for records that have nothing to do with each other fail"
            f" one after the other, and none passes: {why.error_class}: {first_line}"
        )
        return self._down

    def note(self, df: DataFrame, *, is_dense: bool = False) -> None:
        """A run has succeeded; within the handler's turn.

        Args:
            df: What it processed.
            is_dense: Whether there is a record at each of its offsets. Then it is not looked for
                one.
        """
        self._down, self._last_s = None, self._clock()
        if self._asking and (is_dense or _has_records(df)):
            self.passes += 1

    def is_idle(self, for_s: float) -> bool:
        """Whether nothing was processed for so long (s): then nothing is worth waiting for."""
        return self._clock() - self._last_s > for_s

    def await_pass(
        self, wait_s: float, sleep: Callable[[float], None], stopped: Callable[[], bool]
    ) -> bool:
        """Wait until another run has passed; whether one has."""
        before = self.passes
        while wait_s > 0 and self.passes == before and not stopped():
            sleep(_LOOK_S)
            wait_s -= _LOOK_S
        return self.passes > before

    def __enter__(self) -> None:
        """Have passes counted; it may cost a small job each."""
        with self._changing:
            self._asking += 1

    def __exit__(self, *_raised: object) -> None:
        with self._changing:
            self._asking -= 1


def _has_records(df: DataFrame) -> bool:
    try:
        return not df.isEmpty()
    except Exception:  # noqa: BLE001  (then nothing is known, and nothing is counted)
        return False
