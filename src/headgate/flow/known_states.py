"""What the stages of a flow have shown of themselves, while it still counts."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headgate.errors import OptionError
from headgate.flow.carrier import Found
from headgate.flow.signals import StageState
from headgate.flow.told import Told
from headgate.flow.wire import state_of


@dataclass(frozen=True, slots=True)
class _Seen:
    state: StageState
    mark: Any
    since_s: float


class KnownStates:
    """The newest state of each stage, until its lease is over.

    A lease runs from when a state was written, where the carrier knows that, and from when it was
    first seen where it does not: no clock needs to agree with another. Times are seconds of one
    clock that never goes back; the methods can be called from any thread.
    """

    def __init__(self, flow: str, told: Told) -> None:
        self._flow = flow
        self._told = told
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}

    def see(self, all_found: Iterable[Found], now_s: float) -> None:
        """Note what is shown now; whose state is not among it is gone."""
        with self._lock:
            seen = {found.stage: self._see(found, now_s) for found in all_found}
            self._seen = {stage: each for stage, each in seen.items() if each is not None}

    def living(self, now_s: float) -> dict[str, StageState]:
        """The states whose lease is not over, by stage."""
        with self._lock:
            return {
                stage: seen.state
                for stage, seen in sorted(self._seen.items())
                if (now_s - seen.since_s) * 1000 < seen.state.lease_ms
            }

    def _see(self, found: Found, now_s: float) -> _Seen | None:
        before = self._seen.get(found.stage)
        if before is not None and before.mark == found.mark and found.age_ms is None:
            return before
        try:
            state = self._read(found)
        except OptionError as error:
            self._told.tell(
                f"state of {found.stage}",
                f"The state that stage {found.stage[:100]!r} of flow {self._flow!r} seems to show"
                f" is ignored: {error}",
            )
            return None
        return _Seen(state, found.mark, now_s - (found.age_ms or 0) / 1000)

    def _read(self, found: Found) -> StageState:
        if found.fault is not None:
            raise OptionError(found.fault)
        state = state_of(found.text)
        if (state.flow, state.stage) != (self._flow, found.stage):
            raise OptionError(f"It says that it is of stage {state.stage!r} of {state.flow!r}.")
        return state
