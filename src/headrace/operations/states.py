"""How gates and receivers fare, in a word each."""

from enum import StrEnum


class GateState(StrEnum):
    """How a gate fares, in the words of ``--json``."""

    NEW = "new"
    """It has had no batch yet."""
    KEEPING_UP = "keeping up"
    """The last batch admitted all that was waiting."""
    DRAINING = "draining"
    """Records wait, and fewer each time."""
    HOLDING = "holding"
    """Records wait, about as many each time, or it is too early to say."""
    FALLING_BEHIND = "falling behind"
    """Records wait, and more each time."""
    IDLE = "idle"
    """No batch for a while, and nothing was waiting: no data, or no query."""
    STALLED = "stalled"
    """No batch for a while, although records were waiting: the query has stopped."""
    FINISHED = "finished"
    """Its query has taken what there was, with a trigger such as ``availableNow``, and ended."""
    STOPPED = "stopped"
    """Its program has stopped the query, or has ended, or the query has ended by an exception."""
    DEAD = "dead"
    """Its process is gone without a word, or gives no sign of life: killed, or the machine lost."""
    OVERDUE = "overdue"
    """A batch has been running for several intervals: the job is slow, or it hangs."""
    ISOLATING = "isolating"
    """A batch failed, and its records are run in parts to find those that cannot be processed."""
    INTERRUPTED = "interrupted"
    """The query was stopped while the last batch ran, which runs again at its next start."""
    FAILED = "failed"
    """The last batch failed."""
    PAUSED = "paused"
    """An operator has paused it, or asked it to drain: it plans no batch."""


class ReceiverState(StrEnum):
    """How a receiver fares, in the words of ``--json``."""

    RECEIVING = "receiving"
    """Records come, and none waits for the rate."""
    HELD = "held"
    """All records wait: its journal is at its cap, which its ``held`` says."""
    LIMITED = "limited"
    """Records wait for the rate: more come than it allows."""
    IDLE = "idle"
    """No records came lately."""
    SILENT = "silent"
    """It has not been seen for a while: it has died, or cannot reach the ledger."""
