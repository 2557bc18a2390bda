"""Journals: records that cannot be read twice from where they came, kept until they are processed.

A journal is a directory, here or in HDFS, or a prefix of an object store, of immutable block files;
it corresponds to a topic in Kafka. Its lanes correspond to partitions: each has one writer and
dense offsets from 0.
"""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__)
