from headrace.gate import ARROW_SCHEMA as ARROW_SCHEMA
from headrace.journal.journal import (
    BlockRef as BlockRef,
    Journal as Journal,
    SegmentRef as SegmentRef,
)
from headrace.journal.journal_check import (
    DEFECTS as DEFECTS,
    JournalFinding as JournalFinding,
    JournalFindingKind as JournalFindingKind,
    JournalVerification as JournalVerification,
    LaneSummary as LaneSummary,
    verify as verify,
)
from headrace.journal.journal_repair import lost_records as lost_records, repair as repair
from headrace.journal.lane import Lost as Lost
from headrace.journal.lane_writer import LaneWriter as LaneWriter
from headrace.journal.layout import MAX_OFFSET as MAX_OFFSET, lane_of as lane_of
from headrace.journal.records import Records as Records
from headrace.journal.retention import (
    KeptReason as KeptReason,
    LanePruning as LanePruning,
    prune as prune,
)

__all__: list[str]
