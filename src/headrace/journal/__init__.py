"""Journals: records that cannot be read twice from where they came, kept until they are processed.

A journal is a directory, here or in HDFS, or a prefix of an object store, of immutable block files;
what a topic is in Kafka. Its lanes are what partitions are there: each has one writer and dense
offsets from 0.
"""

from headrace.journal.blocks import Lost
from headrace.journal.columns import ARROW_SCHEMA
from headrace.journal.journal import BlockRef, Journal
from headrace.journal.lane import LaneWriter
from headrace.journal.records import Records
from headrace.journal.repair import repair
from headrace.journal.retention import Kept, LanePruning, prune
from headrace.journal.verify import DEFECTS, Finding, FindingKind, LaneSummary, Verification, verify

__all__ = [
    "ARROW_SCHEMA",
    "DEFECTS",
    "BlockRef",
    "Finding",
    "FindingKind",
    "Journal",
    "Kept",
    "LanePruning",
    "LaneSummary",
    "LaneWriter",
    "Lost",
    "Records",
    "Verification",
    "prune",
    "repair",
    "verify",
]
