"""How many senders may be connected, and who has to go when there are too many."""

from collections.abc import Callable, Hashable


class Connections:
    """So many connections; when another one comes, the one that has waited longest idly goes.

    Idle is who has sent nothing that is whole yet. So whoever only opens connections pushes out
    their own, while the others are served. Belongs to one event loop.

    Args:
        most: How many there may be; 1 or more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: dict[Hashable, Callable[[], None]] = {}
        self._busy: dict[Hashable, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def admit(self, connection: Hashable, close: Callable[[], None]) -> bool:
        """Count a new connection, idle at first, if there is a place for it or one can be made.

        Args:
            connection: What it is known by.
            close: Ends it at once; called when its place is given away.

        Returns:
            Whether it is counted; otherwise all are busy, and it must be refused.
        """
        if len(self) >= self._most and not self.close_longest_idle():
            return False
        self._idle[connection] = close
        return True

    def busy(self, connection: Hashable) -> None:
        """It has sent something that is whole, and keeps its place."""
        if close := self._idle.pop(connection, None):
            self._busy[connection] = close

    def idle(self, connection: Hashable) -> None:
        """It was answered, and may have to go."""
        if close := self._busy.pop(connection, None):
            self._idle[connection] = close

    def leave(self, connection: Hashable) -> None:
        """It is closed; one that is not counted any more may be closed too."""
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)

    def close_longest_idle(self) -> bool:
        """Make a place. Returns whether there was one idle."""
        if not self._idle:
            return False
        longest = next(iter(self._idle))
        self._idle.pop(longest)()
        return True
