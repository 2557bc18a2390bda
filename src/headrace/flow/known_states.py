"""What the stages of a flow have shown of themselves, while it still counts."""

import threading
from collections.abc import Collection, Iterable

from headrace.errors import OptionError
from headrace.flow.carrier import Found
from headrace.flow.signals import StageState
from headrace.flow.told import Told
from headrace.flow.wire import state_of


class KnownStates:
    """The newest state of each stage, until its lease is over.

    Times are seconds of one clock that never goes back; the methods can be called from any thread.
    """

    def __init__(self, flow: str, told: Told) -> None:
        self._flow = flow
        self._told = told
        self._lock = threading.Lock()
        self._until_s: dict[StageState, float] = {}

    def see(
        self, all_found: Iterable[Found], now_s: float, names: Collection[str] | None = None
    ) -> None:
        """Note what is shown now; whose state is not among it is gone.

        Args:
            all_found: What was found.
            now_s: Now.
            names: The stages whose states were asked for; None for all.
        """
        until_s = {}
        for found in all_found:
            try:
                state = self._read(found)
            except OptionError as error:
                self._told.tell(
                    f"state of {found.stage}",
                    f"The state that stage {found.stage[:100]!r} of flow {self._flow!r} seems to"
                    f" show is ignored: {error}",
                )
            else:
                if found.counts(state.lease_ms):
                    until_s[state] = now_s + (state.lease_ms - found.age_ms) / 1000
        with self._lock:
            if names is not None:
                kept = {s: until for s, until in self._until_s.items() if s.stage not in names}
                until_s = kept | until_s
            self._until_s = until_s

    def living(self, now_s: float) -> dict[str, StageState]:
        """The states whose lease is not over, by stage."""
        with self._lock:
            return {
                state.stage: state for state, until_s in self._until_s.items() if now_s < until_s
            }

    def _read(self, found: Found) -> StageState:
        if found.fault is not None:
            raise OptionError(found.fault)
        state = state_of(found.text)
        if (state.flow, state.stage) != (self._flow, found.stage):
            raise OptionError(f"It says that it is of stage {state.stage!r} of {state.flow!r}.")
        return state
