"""The ledger: gates, rates, batches, dead letters and losses, in SQLite or PostgreSQL.

The plan of a batch is written to it before the batch is processed, its outcome after. It is also
the only state that the processes of a query share: they have no common memory.
"""

from headrace.core.timing import WallClock
from headrace.gate.ledger.batch_queries import IsolatedBatches
from headrace.gate.ledger.checkpoints import CheckpointRecord
from headrace.gate.ledger.connection import Timeouts, normalize_url, redact_url, without_secrets
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.fleet import IsolationProgress, Pulse, SeriesPoint
from headrace.gate.ledger.gates import GateClaim, GateQuery
from headrace.gate.ledger.history import lost_records
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import (
    DEFECTS,
    Finding,
    FindingKind,
    Missed,
    Span,
    Verdict,
    Verification,
    extended,
    verify,
)
from headrace.gate.ledger.receivers import ReceiverRecord, ReceiverReport, StreamRate
from headrace.gate.ledger.records import (
    Admission,
    Attached,
    BatchRecord,
    Covered,
    DeadLetter,
    DeadLetterRecord,
    DeadLetterStatus,
    GateRecord,
    Loss,
    PlannedBatch,
    PlannedRange,
    Processed,
    Pruned,
    QueryEnd,
    RateSample,
    Rejected,
    Unresolved,
    batch_key,
    part_key,
    part_of,
    without,
)
from headrace.gate.ledger.repairs import AlikeBatches, AlikeLetters
from headrace.gate.ledger.transitions import TRANSITIONS, Kind, Status, Transition

__all__ = [
    "DEFECTS",
    "TRANSITIONS",
    "Admission",
    "AlikeBatches",
    "AlikeLetters",
    "Attached",
    "BatchRecord",
    "CheckpointRecord",
    "Covered",
    "DeadLetter",
    "DeadLetterRecord",
    "DeadLetterStatus",
    "ErrorReport",
    "Finding",
    "FindingKind",
    "GateClaim",
    "GateQuery",
    "GateRecord",
    "IsolatedBatches",
    "IsolationProgress",
    "Kind",
    "Ledger",
    "Loss",
    "Missed",
    "PlannedBatch",
    "PlannedRange",
    "Processed",
    "Pruned",
    "Pulse",
    "QueryEnd",
    "RateSample",
    "ReceiverRecord",
    "ReceiverReport",
    "Rejected",
    "SeriesPoint",
    "Span",
    "Status",
    "StreamRate",
    "Timeouts",
    "Transition",
    "Unresolved",
    "Verdict",
    "Verification",
    "WallClock",
    "batch_key",
    "extended",
    "lost_records",
    "normalize_url",
    "part_key",
    "part_of",
    "redact_url",
    "verify",
    "without",
    "without_secrets",
]
