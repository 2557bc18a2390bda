"""Journals: write-ahead logs for records that their senders cannot send again.

A journal corresponds to a Kafka topic. It is stored in a local directory, in an HDFS directory, or
under a prefix of an object store. The lanes of a journal correspond to partitions. A lane is a log
of segment files, with one writer and with consecutive offsets from 0.
"""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__)
