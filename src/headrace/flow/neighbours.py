"""What a stage knows of the stages directly before and after it, from what they show."""

from collections.abc import Collection, Mapping
from typing import Final

from headrace.control.hop import Upstream
from headrace.flow.signals import Signals, StageState

LOOK_MS: Final = 1000
"""How often to read what they show."""


class Neighbours:
    """Follows the states of the stages around one. For one thread.

    While what carries the signals is away, nothing is known of them, and each counts as running.

    Args:
        stage: The stage.
        names: The stages directly before and after it.
        signals: The stage's part in the signals.
    """

    def __init__(self, stage: str, names: Collection[str], signals: Signals) -> None:
        self._stage = stage
        self._names = frozenset(names)
        self._signals = signals
        self._states: Mapping[str, StageState] | None = None
        self._looked_ms: int | None = None

    def look(self, now_ms: int) -> None:
        """Read what they show, if the last time was long enough ago."""
        if self._looked_ms is None or now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms
            self._read()

    def upstream(self, name: str) -> Upstream:
        """How a stage before fares."""
        if self._states is None:
            return Upstream.RUNNING
        state = self._states.get(name)
        if state is None:
            return Upstream.GONE
        return Upstream.RUNNING if state.held_by in {None, self._stage} else Upstream.THROTTLED

    def is_there(self, name: str) -> bool:
        """Whether a stage shows itself, which is read again if it did not at the last look."""
        if self._states is not None and name not in self._states:
            self._read()
        return self._states is None or name in self._states

    def _read(self) -> None:
        states = self._signals.states(self._names)
        self._states = states if self._signals.is_connected else None
