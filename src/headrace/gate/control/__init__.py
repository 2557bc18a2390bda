"""The control laws: pure functions of their arguments, without Spark, I/O, clocks or threads."""

from headrace.gate.control.batch_cost import BatchCost, SourceCost
from headrace.gate.control.hop import ChunkRate, HopController, Upstream
from headrace.gate.control.input_queue import InputQueue, takes_per_s
from headrace.gate.control.interval import AUTO, AutoInterval, IntervalChange, IntervalLaw
from headrace.gate.control.learned import FinishedBatch, LearnedBatches
from headrace.gate.control.limits import (
    BatchLimits,
    OperatorAction,
    OperatorActionKind,
    OperatorLimits,
    PartitionLimit,
)
from headrace.gate.control.pid import PIDRateEstimator, PIDTerms
from headrace.gate.control.plan import ASSUMED_RECORD_BYTES, Plan, empty_plan, plan, should_wait
from headrace.gate.control.pressure import (
    Epoch,
    HopSettings,
    PressureSignal,
    PressureState,
    RateLimit,
    SignalOutcome,
    UpstreamThrottle,
)
from headrace.gate.control.rate_law import Reason, max_messages_per_partition
from headrace.gate.control.rates import (
    BatchProgress,
    BatchStats,
    EstimatorSettings,
    LawName,
    LearntRate,
    QueryRates,
    batch_stats,
)
from headrace.gate.control.sharing import Demand, TokenBucket, catch_up_rate, fair_shares

__all__ = [
    "ASSUMED_RECORD_BYTES",
    "AUTO",
    "AutoInterval",
    "BatchCost",
    "BatchLimits",
    "BatchProgress",
    "BatchStats",
    "ChunkRate",
    "Demand",
    "Epoch",
    "EstimatorSettings",
    "FinishedBatch",
    "HopController",
    "HopSettings",
    "InputQueue",
    "IntervalChange",
    "IntervalLaw",
    "LawName",
    "LearnedBatches",
    "LearntRate",
    "OperatorAction",
    "OperatorActionKind",
    "OperatorLimits",
    "PIDRateEstimator",
    "PIDTerms",
    "PartitionLimit",
    "Plan",
    "PressureSignal",
    "PressureState",
    "QueryRates",
    "RateLimit",
    "Reason",
    "SignalOutcome",
    "SourceCost",
    "TokenBucket",
    "Upstream",
    "UpstreamThrottle",
    "batch_stats",
    "catch_up_rate",
    "empty_plan",
    "fair_shares",
    "max_messages_per_partition",
    "plan",
    "should_wait",
    "takes_per_s",
]
