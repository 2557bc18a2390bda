"""The control laws: pure functions of their arguments, without Spark, I/O, clocks or threads."""

from headgate.control.assertion import Assertion, Incarnation
from headgate.control.estimator import (
    PIDRateEstimator,
    PIDTerms,
    RateEstimator,
    create_estimator,
)
from headgate.control.hop_controller import HopController
from headgate.control.hop_emission import Bound, Emission, Obeyed, Pressure
from headgate.control.hop_queue import InputQueue, Upstream, takes_per_s
from headgate.control.hop_rate import ChunkRate
from headgate.control.hop_settings import HopSettings
from headgate.control.limits import Limits, PartitionLimit
from headgate.control.plan import ASSUMED_RECORD_BYTES, Plan, hold, plan, should_wait
from headgate.control.ranges import OffsetRange, TopicPartition
from headgate.control.rate_law import max_messages_per_partition
from headgate.control.reason import Reason
from headgate.control.settings import EstimatorSettings
from headgate.control.sharing import Taker, catching_up, parts
from headgate.control.timing import BatchProgress, BatchStats, batch_stats
from headgate.control.token_bucket import TokenBucket

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
