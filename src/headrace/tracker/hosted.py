"""What `Receivers.start` gives: some receivers of one journal, to be watched and stopped."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from headrace.errors import ReceiverError
from headrace.tracker.lane import TrackedLane
from headrace.tracker.status import ReceiverStatus, State

STOP_S: Final = 30.0
"""How long a clean stop may take."""

_LOG: Final = logging.getLogger("headrace.tracker")


class HostedReceivers:
    """Receivers at work on executors; made by `Receivers.start`.

    Args:
        lanes: What keeps each of them running.
        threads: What runs each of these.
    """

    def __init__(self, lanes: Sequence[TrackedLane], threads: Sequence[threading.Thread]) -> None:
        self._lanes = tuple(lanes)
        self._threads = tuple(threads)

    def status(self) -> tuple[ReceiverStatus, ...]:
        """How each of them fares, by their lanes."""
        return tuple(lane.status for lane in self._lanes)

    def wait_until_receiving(self, timeout_s: float = 60.0) -> tuple[ReceiverStatus, ...]:
        """Wait until all of them receive.

        Returns:
            How each of them fares, with its address if it listens.

        Raises:
            ReceiverError: One does not within this time, or has ended; the others go on.
        """
        deadline_s = time.monotonic() + timeout_s
        found = []
        for lane in self._lanes:
            status = lane.wait_until_settled(max(0.0, deadline_s - time.monotonic()))
            if status.state is not State.RECEIVING:
                why = status.last_error or "no core is free for it, or its executor is slow"
                raise ReceiverError(
                    f"The receiver of lane {status.lane} is not receiving but {status.state}: {why}"
                )
            found.append(status)
        return tuple(found)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End them cleanly, and return when they have ended; again is harmless.

        Nothing more is taken, what is in the buffers is made durable and acknowledged, and the
        lanes are free for others.

        Args:
            timeout_s: Whatever has not ended then is killed, as by a crash: what was not
                acknowledged is sent again by its senders. The log says so.
        """
        deadline_s = time.monotonic() + timeout_s
        self.ask_to_stop()
        for lane, thread in zip(self._lanes, self._threads, strict=True):
            if not lane.finish(thread, deadline_s):
                _LOG.warning(
                    "The receiver of lane %d did not end in time, and was killed; what was not"
                    " acknowledged is sent again by its senders.",
                    lane.lane,
                )

    def ask_to_stop(self) -> None:
        """Have all of them begin to end; returns at once."""
        for lane in self._lanes:
            lane.stop()
