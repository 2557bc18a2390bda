"""A stage of a chain with its agent, its queue and its batches, but without Spark."""

from collections.abc import Sequence

from tests.flow.worlds import World
from tests.services.ledgers import gate_now

from headrace.core.ranges import OffsetRange
from headrace.flow.agent import StageAgent, StageSpec
from headrace.flow.kafka_channel import KafkaQueue
from headrace.gate.control.input_queue import InputQueue
from headrace.gate.control.pressure import HopSettings
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange

INTERVAL_MS = 100
SETTINGS = HopSettings(
    overload_bytes=10_000,
    light_load_bytes=1_000,
    overload_sensitivity_ms=300,
    light_load_sensitivity_ms=300,
    lease_ms=3_000,
)


class Waiting(KafkaQueue):
    """Nothing waits; or far too much, and more and more, until it is told that this is enough."""

    def __init__(self) -> None:
        self._grows = self._waiting = self._arrived = 0

    def flood(self) -> None:
        self._waiting, self._grows = 1_000 * SETTINGS.overload_bytes, 100

    def hold(self) -> None:
        """Go on with too much, but no longer with more and more."""
        self._grows = -1

    def drain(self) -> None:
        self._waiting = self._grows = 0

    def measure(self) -> InputQueue:
        self._arrived += 100
        self._waiting += self._grows
        return InputQueue(self._waiting, self._waiting, self._arrived)

    def close(self) -> None:
        pass


class RunningStage:
    """One stage of a chain, which can be gone from one moment on."""

    def __init__(self, world: World, ledger: Ledger, name: str, chain: Sequence[str]) -> None:
        at = chain.index(name)
        before, after = tuple(chain[max(at - 1, 0) : at]), tuple(chain[at + 1 : at + 2])
        self.name = name
        self.queue = Waiting()
        self._world = world
        self._ledger = ledger
        self._gate = f"{world.flow}.{name}"
        self._spec = StageSpec(world.flow, name, self._gate, INTERVAL_MS, before, after, SETTINGS)
        self._next = 0
        ledger.gates.declare(self._gate, interval_ms=INTERVAL_MS, source="kafka", estimator="{}")
        self.begin()

    def begin(self) -> None:
        """Run, from now on."""
        self.signals = self._world.join(self.name, self._spec.downstream)
        self.agent = StageAgent(
            self._spec,
            self._ledger,
            self.signals,
            self.queue,
            publishes_to_ledger=self._world.is_apart,
        ).start()

    def admit(self) -> None:
        """Begin a batch of ten records."""
        offsets = OffsetRange("topic", 0, self._next, self._next + 10)
        self._next += 10
        planned = (PlannedRange(offsets),)
        self._ledger.batches.begin(PlannedBatch(self._gate, "run", planned, "rate", ""))

    def throttled_by(self) -> str | None:
        """The stage that throttles it."""
        held = gate_now(self._ledger, self._gate).rate_limit
        return None if held is None else held.throttled_by

    def vanish(self) -> None:
        """Be gone without a word, as when the process is killed."""
        self.agent.stop()
        self._world.cut_off(self.name)
        self.signals.close()

    def close(self) -> None:
        self.agent.close()
