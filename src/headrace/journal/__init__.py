"""Journals: write-ahead logs for records that their senders cannot send again.

A journal corresponds to a topic in Kafka: a local or HDFS directory, or a prefix of an object
store. Each lane of a journal corresponds to a partition: a log of segments with one writer and
dense offsets from 0.
"""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__)
