"""The control laws: pure functions of their arguments, without Spark, I/O, clocks or threads."""

from headrace.control.assertion import Epoch, PressureSignal
from headrace.control.estimator import (
    PIDRateEstimator,
    PIDTerms,
    RateEstimator,
    create_estimator,
)
from headrace.control.hop_controller import HopController
from headrace.control.hop_emission import PressureState, RateLimit, SignalOutcome, UpstreamThrottle
from headrace.control.hop_queue import InputQueue, Upstream, takes_per_s
from headrace.control.hop_rate import ChunkRate
from headrace.control.hop_settings import HopSettings
from headrace.control.limits import Limits, PartitionLimit
from headrace.control.plan import ASSUMED_RECORD_BYTES, Plan, empty_plan, plan, should_wait
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.control.rate_law import max_messages_per_partition
from headrace.control.reason import Reason
from headrace.control.settings import EstimatorSettings
from headrace.control.sharing import Demand, catch_up_rate, fair_shares
from headrace.control.timing import BatchProgress, BatchStats, batch_stats
from headrace.control.token_bucket import TokenBucket

__all__ = [
    "ASSUMED_RECORD_BYTES",
    "BatchProgress",
    "BatchStats",
    "ChunkRate",
    "Demand",
    "Epoch",
    "EstimatorSettings",
    "HopController",
    "HopSettings",
    "InputQueue",
    "Limits",
    "OffsetRange",
    "PIDRateEstimator",
    "PIDTerms",
    "PartitionLimit",
    "Plan",
    "PressureSignal",
    "PressureState",
    "RateEstimator",
    "RateLimit",
    "Reason",
    "SignalOutcome",
    "TokenBucket",
    "TopicPartition",
    "Upstream",
    "UpstreamThrottle",
    "batch_stats",
    "catch_up_rate",
    "create_estimator",
    "empty_plan",
    "fair_shares",
    "max_messages_per_partition",
    "plan",
    "should_wait",
    "takes_per_s",
]
