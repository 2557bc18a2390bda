"""Backfill: when a failed batch is run again, how much of it at once, and by whom."""

from headrace.backfill.events import (
    BackfillEvent,
    Claimed,
    Done,
    Failed,
    LeaseLost,
    MarkedDead,
    NearRetention,
    Skipped,
    Split,
)
from headrace.backfill.monitor import Monitor, OpenBatch
from headrace.backfill.schedule import (
    BackfillBudget,
    Cost,
    Cron,
    Every,
    ExternalBudget,
    InProcessBudget,
    LiveStream,
    Manual,
    Schedule,
    Spare,
    UnlimitedBudget,
    parse_schedule,
)
from headrace.backfill.scheduler import MAX_BACKFILLS, BackfillScheduler, OwnerSettings

__all__ = [
    "MAX_BACKFILLS",
    "BackfillBudget",
    "BackfillEvent",
    "BackfillScheduler",
    "Claimed",
    "Cost",
    "Cron",
    "Done",
    "Every",
    "ExternalBudget",
    "Failed",
    "InProcessBudget",
    "LeaseLost",
    "LiveStream",
    "Manual",
    "MarkedDead",
    "Monitor",
    "NearRetention",
    "OpenBatch",
    "OwnerSettings",
    "Schedule",
    "Skipped",
    "Spare",
    "Split",
    "UnlimitedBudget",
    "parse_schedule",
]
