"""Journals: records that cannot be read twice from where they came, kept until they are processed.

A journal is a directory, here or in HDFS, or a prefix of an object store, of immutable block files;
what a topic is in Kafka. Its lanes are what partitions are there: each has one writer and dense
offsets from 0.
"""

from headgate.journal.blocks import Lost
from headgate.journal.columns import ARROW_SCHEMA
from headgate.journal.journal import BlockRef, Journal
from headgate.journal.lane import LaneWriter
from headgate.journal.records import Records
from headgate.journal.repair import repair
from headgate.journal.retention import Kept, LanePruning, prune
from headgate.journal.verify import DEFECTS, Finding, FindingKind, LaneSummary, Verification, verify

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
