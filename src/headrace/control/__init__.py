"""The control laws: pure functions of their arguments, without Spark, I/O, clocks or threads."""

from headrace.control.assertion import Assertion, Incarnation
from headrace.control.estimator import (
    PIDRateEstimator,
    PIDTerms,
    RateEstimator,
    create_estimator,
)
from headrace.control.hop_controller import HopController
from headrace.control.hop_emission import Bound, Emission, Obeyed, Pressure
from headrace.control.hop_queue import InputQueue, Upstream, takes_per_s
from headrace.control.hop_rate import ChunkRate
from headrace.control.hop_settings import HopSettings
from headrace.control.limits import Limits, PartitionLimit
from headrace.control.plan import ASSUMED_RECORD_BYTES, Plan, hold, plan, should_wait
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.control.rate_law import max_messages_per_partition
from headrace.control.reason import Reason
from headrace.control.settings import EstimatorSettings
from headrace.control.sharing import Taker, catching_up, parts
from headrace.control.timing import BatchProgress, BatchStats, batch_stats
from headrace.control.token_bucket import TokenBucket

__all__ = [
    "ASSUMED_RECORD_BYTES",
    "Assertion",
    "BatchProgress",
    "BatchStats",
    "Bound",
    "ChunkRate",
    "Emission",
    "EstimatorSettings",
    "HopController",
    "HopSettings",
    "Incarnation",
    "InputQueue",
    "Limits",
    "Obeyed",
    "OffsetRange",
    "PIDRateEstimator",
    "PIDTerms",
    "PartitionLimit",
    "Plan",
    "Pressure",
    "RateEstimator",
    "Reason",
    "Taker",
    "TokenBucket",
    "TopicPartition",
    "Upstream",
    "batch_stats",
    "catching_up",
    "create_estimator",
    "hold",
    "max_messages_per_partition",
    "parts",
    "plan",
    "should_wait",
    "takes_per_s",
]
