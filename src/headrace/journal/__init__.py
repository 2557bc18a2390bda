"""Journals: records that cannot be read twice from where they came, kept until they are processed.

A journal is a directory, here or in HDFS, or a prefix of an object store, of immutable block files;
it corresponds to a topic in Kafka. Its lanes correspond to partitions: each has one writer and
dense offsets from 0.
"""

from headrace.gate.source.log import ARROW_SCHEMA
from headrace.journal.journal import BlockRef, Journal
from headrace.journal.journal_check import (
    DEFECTS,
    JournalFinding,
    JournalFindingKind,
    JournalVerification,
    LaneSummary,
    verify,
)
from headrace.journal.journal_repair import lost_records, repair
from headrace.journal.lane_files import Lost
from headrace.journal.lane_writer import LaneWriter
from headrace.journal.records import Records
from headrace.journal.retention import KeptReason, LanePruning, prune

__all__ = [
    "ARROW_SCHEMA",
    "DEFECTS",
    "BlockRef",
    "Journal",
    "JournalFinding",
    "JournalFindingKind",
    "JournalVerification",
    "KeptReason",
    "LanePruning",
    "LaneSummary",
    "LaneWriter",
    "Lost",
    "Records",
    "lost_records",
    "prune",
    "repair",
    "verify",
]
