"""How a receiver on an executor fares."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a receiver does at present.

    ``STARTING``: its task waits for a core, or takes over its lane. ``RECEIVING``. ``WAITING``: it
    went wrong, and is started again in a moment. ``STOPPED``: as it was asked to, or because
    nothing more was to come. ``FAILED``: it is not started again, for that would not help.
    """

    STARTING = "starting"
    RECEIVING = "receiving"
    WAITING = "waiting"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """A receiver as its tracker knows it, at most half a second ago.

    Attributes:
        lane: The lane that it writes.
        state: See `State`.
        host: The machine that it runs on; None while it does not.
        address: What senders connect to, as of an `HttpReceiver` or a `TcpReceiver`; None
            while there is none.
        restarts: How often it was begun anew.
        last_error: Why that was so the last time, or why it has failed; None if it never was.
    """

    lane: int
    state: State
    host: str | None
    address: str | None
    restarts: int
    last_error: str | None
