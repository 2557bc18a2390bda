"""The ledger: gates, rates, batches, dead letters and losses, in SQLite or PostgreSQL.

What a batch is about to read stands in it before it is processed, its outcome after. It is also
where the processes of a query meet, for they share no memory.
"""

from headgate.ledger.base import Clock
from headgate.ledger.checkpoints import CheckpointRecord, Kept
from headgate.ledger.claims import GateClaim, GateQuery
from headgate.ledger.findings import DEFECTS, Finding, FindingKind, Span, Verdict, Verification
from headgate.ledger.identity import schedule_id
from headgate.ledger.letters import DeadLetter, DeadLetterRecord, LetterStatus
from headgate.ledger.proof import extended, lost_records, verify
from headgate.ledger.receivers import ReceiverRecord, ReceiverSeen, StreamRate
from headgate.ledger.records import (
    Admission,
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
from headgate.ledger.retention import Processed
from headgate.ledger.status import ARROWS, Arrow, Kind, Status
from headgate.ledger.store import Ledger
from headgate.ledger.urls import normalize_url, redact_url, without_secrets

__all__ = [
    "ARROWS",
    "DEFECTS",
    "Admission",
    "Arrow",
    "BatchRecord",
    "CheckpointRecord",
    "Clock",
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
