"""The tracker: receivers on Spark's executors, started, watched, started again and stopped."""

from headgate.tracker.hosted import HostedReceivers
from headgate.tracker.receivers import Receivers
from headgate.tracker.status import ReceiverStatus, State

__all__ = ["HostedReceivers", "ReceiverStatus", "Receivers", "State"]
