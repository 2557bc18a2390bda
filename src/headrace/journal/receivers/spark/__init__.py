"""Receivers on Spark's executors: started, watched, restarted and stopped by the driver."""

from headrace.journal.receivers.spark.spark_receivers import HostedReceivers, Receivers
from headrace.journal.receivers.spark.supervisor import HostedState, ReceiverStatus

__all__ = ["HostedReceivers", "HostedState", "ReceiverStatus", "Receivers"]
