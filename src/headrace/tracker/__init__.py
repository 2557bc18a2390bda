"""The tracker: receivers on Spark's executors, started, watched, started again and stopped."""

from headrace.tracker.hosted import HostedReceivers
from headrace.tracker.receivers import Receivers
from headrace.tracker.status import ReceiverStatus, State

__all__ = ["HostedReceivers", "ReceiverStatus", "Receivers", "State"]
