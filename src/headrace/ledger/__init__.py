"""The ledger: gates, rates, batches, dead letters and losses, in SQLite or PostgreSQL.

What a batch is about to read stands in it before it is processed, its outcome after. It is also
where the processes of a query meet, for they share no memory.
"""

from headrace.ledger.checkpoints import CheckpointRecord, Kept
from headrace.ledger.claims import GateClaim, GateQuery
from headrace.ledger.findings import DEFECTS, Finding, FindingKind, Span, Verdict, Verification
from headrace.ledger.identity import schedule_id
from headrace.ledger.letters import DeadLetter, DeadLetterRecord, LetterStatus
from headrace.ledger.proof import extended, lost_records, verify
from headrace.ledger.receivers import ReceiverRecord, ReceiverSeen, StreamRate
from headrace.ledger.records import (
    Admission,
    Attached,
    BatchRecord,
    Covered,
    ErrorReport,
    GateRecord,
    Loss,
    NotMadeGood,
    PlannedBatch,
    PlannedRange,
    Pruned,
    RateSample,
)
from headrace.ledger.retention import Processed
from headrace.ledger.status import ARROWS, Arrow, Kind, Status
from headrace.ledger.store import Ledger
from headrace.ledger.urls import normalize_url, redact_url, without_secrets

__all__ = [
    "ARROWS",
    "DEFECTS",
    "Admission",
    "Arrow",
    "Attached",
    "BatchRecord",
    "CheckpointRecord",
    "Covered",
    "DeadLetter",
    "DeadLetterRecord",
    "ErrorReport",
    "Finding",
    "FindingKind",
    "GateClaim",
    "GateQuery",
    "GateRecord",
    "Kept",
    "Kind",
    "Ledger",
    "LetterStatus",
    "Loss",
    "NotMadeGood",
    "PlannedBatch",
    "PlannedRange",
    "Processed",
    "Pruned",
    "RateSample",
    "ReceiverRecord",
    "ReceiverSeen",
    "Span",
    "Status",
    "StreamRate",
    "Verdict",
    "Verification",
    "extended",
    "lost_records",
    "normalize_url",
    "redact_url",
    "schedule_id",
    "verify",
    "without_secrets",
]
