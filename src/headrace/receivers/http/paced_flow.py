"""When a connection over HTTP is read."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class PacedFlow(FlowControl):
    """Reads no further of a sender while `hold` says so, or `is_ahead`.

    The latter sends requests ahead, and has to read its answers. An application that waits for the
    end of a connection would have it read on.
    """

    def __init__(self, transport: asyncio.Transport, is_ahead: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_ahead = is_ahead
        self._is_held = False
        self._is_wanted = True

    def pause_reading(self) -> None:
        """Read no more for now, for the application's sake."""
        self._is_wanted = False
        super().pause_reading()

    def resume_reading(self) -> None:
        """Read again, for the application's sake."""
        self._is_wanted = True
        if not self._is_held and not self._is_ahead():
            super().resume_reading()

    def hold(self) -> None:
        """Read no more until `release`."""
        self._is_held = True
        super().pause_reading()

    def release(self) -> None:
        """Read again, if the application wants to."""
        self._is_held = False
        if self._is_wanted:
            self.resume_reading()
