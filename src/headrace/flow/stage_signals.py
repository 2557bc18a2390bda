"""The signals of one stage, over whatever carries them."""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import Final, Self

from headrace.control.pressure import PressureSignal
from headrace.control.validation import require_name
from headrace.errors import OptionError, SignalError
from headrace.flow.carrier import AwayError, Carrier, Found
from headrace.flow.inbox import Inbox
from headrace.flow.known_states import KnownStates
from headrace.flow.outbox import Item, Outbox
from headrace.flow.signals import StageState
from headrace.flow.told import Told
from headrace.flow.wire import assertion_of
from headrace.ledger.base import wall_clock_ms

RETRY_S: Final = 1.0
"""How soon to look again where something could not be done."""

_CLOSE_S: Final = 5.0
"""How long an end waits for a carrier that does not answer."""

_LOG: Final = logging.getLogger("headrace.flow")


class StageSignals:
    """See `headrace.flow.Signals`. One thread delivers, and looks for what has come.

    Args:
        carrier: What carries them; it is this stage's alone.
        flow: The flow's name.
        stage: The stage's.
        downstream: The stages directly after it: nobody else is listened to.

    Raises:
        OptionError: A name is none.
    """

    def __init__(
        self, carrier: Carrier, flow: str, stage: str, downstream: Collection[str]
    ) -> None:
        require_name("The name of a flow", flow)
        for name in (stage, *downstream):
            require_name("The name of a stage", name)
        self._carrier = carrier
        self._flow = flow
        self._stage = stage
        self._downstream = frozenset(downstream)
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._troubles = Told(_LOG)
        self._forged = Told(_LOG)
        self._known = KnownStates(flow, self._forged)
        self._session: object = None
        self._look_due_s = 0.0
        self._is_to_look = False
        self._is_closed = False
        self._woken = threading.Event()
        carrier.begin(self._wake)
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-signals-{stage}", daemon=True
        )
        self._thread.start()

    def send(self, assertion: PressureSignal) -> None:
        """See `headrace.flow.Signals.send`."""
        self._require_own("an assertion", assertion.flow, assertion.sender)
        self._say(assertion)

    def receive(self, wait_s: float = 0) -> list[PressureSignal]:
        """See `headrace.flow.Signals.receive`."""
        return self._inbox.take(wait_s)

    def publish(self, state: StageState) -> None:
        """See `headrace.flow.Signals.publish`."""
        self._require_own("a state", state.flow, state.stage)
        self._say(state)

    def states(self, names: Collection[str] | None = None) -> Mapping[str, StageState]:
        """See `headrace.flow.Signals.states`."""
        try:
            self._known.see(self._carrier.states(names), time.monotonic(), names)
        except AwayError:
            pass  # told by the carrier; until it is back, what is known is known
        except SignalError as error:
            self._troubles.tell("states", str(error))
        else:
            self._troubles.is_over("states")
        living = self._known.living(time.monotonic())
        return (
            living
            if names is None
            else {each: state for each, state in living.items() if each in names}
        )

    @property
    def is_connected(self) -> bool:
        """See `headrace.flow.Signals.is_connected`."""
        return self._thread.is_alive() and self._carrier.is_connected

    def close(self) -> None:
        """See `headrace.flow.Signals.close`."""
        self._is_closed = True
        self._inbox.close()
        self._woken.set()
        self._thread.join(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StageSignals({self._flow!r}, {self._stage!r}, {self._carrier!r})"

    def _require_own(self, what: str, flow: str, stage: str) -> None:
        if (flow, stage) != (self._flow, self._stage):
            raise OptionError(
                f"Stage {self._stage!r} of flow {self._flow!r} was given {what} of stage {stage!r}"
                f" of flow {flow!r}; a stage speaks for itself only."
            )

    def _say(self, item: Item) -> None:
        if self._is_closed:
            raise SignalError(
                f"The signals of stage {self._stage!r} of flow {self._flow!r} are closed; open new"
                " ones."
            )
        self._outbox.put(item, time.monotonic())
        self._woken.set()

    def _wake(self) -> None:
        self._is_to_look = True
        self._woken.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._woken.wait(max(0.0, self._look_due_s - time.monotonic()))
            self._woken.clear()
            self._step()
        self._deliver()
        try:
            self._carrier.end()
        except SignalError as error:
            _LOG.debug("The end of stage %r could not be shown: %s", self._stage, error)

    def _step(self) -> None:
        session = self._carrier.session
        if session != self._session:
            self._session = session
            self._outbox.say_again()
            self._is_to_look = True
        is_done = self._deliver()
        if self._is_to_look or time.monotonic() >= self._look_due_s:
            self._is_to_look = False
            is_done = self._look() and is_done
            wait_s = self._carrier.look_every_s if is_done else RETRY_S
            self._look_due_s = time.monotonic() + wait_s

    def _deliver(self) -> bool:
        """Deliver what is due; whether nothing is left over."""
        is_done = True
        for item in self._outbox.due(time.monotonic()):
            about = f"to {item.receiver}" if isinstance(item, PressureSignal) else "state"
            try:
                self._carrier.put(item)
            except AwayError:
                return False
            except SignalError as error:
                self._troubles.tell(about, str(error))
                is_done = False
            else:
                self._outbox.delivered(item)
                self._troubles.is_over(about)
        return is_done

    def _look(self) -> bool:
        """Take what has come; whether nothing is left over."""
        try:
            all_found = self._carrier.look()
        except AwayError:
            return False
        except SignalError as error:
            self._troubles.tell("look", str(error))
            return False
        self._troubles.is_over("look")
        return all([self._take(found) for found in all_found])  # noqa: C419  # each of them

    def _take(self, found: Found) -> bool:
        """Hand on what was found if it is an assertion, and delete it; whether that was done."""
        try:
            assertion = self._read(found)
        except OptionError as error:
            self._forged.tell(
                f"from {found.stage}",
                f"Stage {self._stage!r} of flow {self._flow!r} ignores what {found.stage[:100]!r}"
                f" seems to have sent: {error}",
            )
        else:
            if found.counts(assertion.lease_ms):
                self._inbox.put(assertion)
        try:
            self._carrier.drop(found)
        except AwayError:
            return False
        except SignalError as error:
            self._troubles.tell(f"drop {found.stage}", str(error))
            return False
        self._troubles.is_over(f"drop {found.stage}")
        return True

    def _read(self, found: Found) -> PressureSignal:
        if found.stage not in self._downstream:
            raise OptionError("It is no stage directly after this one.")
        if found.fault is not None:
            raise OptionError(found.fault)
        assertion = assertion_of(found.text)
        assertion.require_possible(wall_clock_ms())
        says = (assertion.flow, assertion.sender, assertion.receiver)
        if says != (self._flow, found.stage, self._stage):
            raise OptionError(
                f"It says that it is of flow {says[0]!r}, from {says[1]!r} to {says[2]!r}."
            )
        return assertion
