"""The message ids seen last, by which a record that is sent again is known."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Where = TypeVar("Where")


@dataclass(frozen=True, slots=True)
class Sorted:
    """What a window makes of the ids of some records.

    Attributes:
        new: The places of the records that were not seen before, or that have no id, rising.
        seen: The ids of the others, which include the second of two with one id.
    """

    new: list[int]
    seen: list[str]


class Window(Generic[Where]):
    """The last so many ids and where their messages are; what came first is forgotten first.

    Args:
        most: How many ids are kept; 0 or more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, Where] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def sort(self, ids: Sequence[str | None], where: Where) -> Sorted:
        """Tell new records from those seen before, and note ``where`` for the new ones."""
        answer = Sorted([], [])
        for place, message_id in enumerate(ids):
            if message_id is not None and message_id in self._known:
                answer.seen.append(message_id)
                continue
            answer.new.append(place)
            if message_id is not None:
                self.note(message_id, where)
        return answer

    def find(self, message_id: str) -> Where | None:
        """Where the message is; None if it was not seen, or too long ago."""
        return self._known.get(message_id)

    def note(self, message_id: str, where: Where) -> None:
        """Note a message as the newest; the oldest one may be forgotten for it."""
        self._known[message_id] = where
        self._known.move_to_end(message_id)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def change(self, message_id: str, where: Where) -> None:
        """Note another place for a message that is remembered; it becomes no newer by that."""
        self._known[message_id] = where

    def forget(self, message_id: str) -> None:
        """Take the next message with this id for a new one."""
        self._known.pop(message_id, None)
