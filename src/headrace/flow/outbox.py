"""What a stage has to say: the newest of each kind, until it is delivered."""

import threading
from dataclasses import dataclass

from headrace.control.pressure import PressureSignal
from headrace.flow.signals import StageState

Item = PressureSignal | StageState


@dataclass(slots=True)
class _Said:
    item: Item
    said_s: float
    is_due: bool


class Outbox:
    """Holds the newest assertion to each stage, and the newest state, as long as they count.

    So it is never longer than there are stages to speak to. What could not be delivered within its
    lease is dropped: it would say what was, not what is. Its methods can be called from any thread;
    times are seconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str | None, _Said] = {}

    def put(self, item: Item, now_s: float) -> None:
        """Say this instead of what was said before to the same stage, or of this one."""
        with self._lock:
            self._newest[_to(item)] = _Said(item, now_s, is_due=True)

    def due(self, now_s: float) -> list[Item]:
        """What is still to be delivered."""
        with self._lock:
            for to, said in list(self._newest.items()):
                if (now_s - said.said_s) * 1000 >= said.item.lease_ms:
                    del self._newest[to]
            return [said.item for said in self._newest.values() if said.is_due]

    def delivered(self, item: Item) -> None:
        """Note that this is delivered; it is kept, for it may get lost with a session."""
        with self._lock:
            said = self._newest.get(_to(item))
            if said is not None and said.item is item:
                said.is_due = False

    def say_again(self) -> None:
        """Have all that counts delivered once more."""
        with self._lock:
            for said in self._newest.values():
                said.is_due = True


def _to(item: Item) -> str | None:
    return item.receiver if isinstance(item, PressureSignal) else None
