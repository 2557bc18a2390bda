from headrace.testing.memory import (
    Crash as Crash,
    ManualClock as ManualClock,
    MemoryLog as MemoryLog,
    Record as Record,
    SimulatedCrash as SimulatedCrash,
    temporary_ledger as temporary_ledger,
)
from headrace.testing.memory_reader import MemoryReader as MemoryReader
from headrace.testing.stream_harness import StreamHarness as StreamHarness

__all__: list[str]
