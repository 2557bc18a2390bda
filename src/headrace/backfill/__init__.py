"""Backfill: when a failed batch is run again, how much of it at once, and by whom."""

from headrace.backfill.admission import Cost, Live
from headrace.backfill.allowance import Allowance, BesideStream, FromOutside, Unlimited
from headrace.backfill.backoff import Backoff
from headrace.backfill.centre import DispatchCentre
from headrace.backfill.dispatch import LEASE_MS, MAX_BACKFILLS, Dispatch, Runner
from headrace.backfill.events import (
    BackfillEvent,
    Buried,
    Done,
    Failed,
    Lost,
    NearRetention,
    Passed,
    Split,
    Taken,
)
from headrace.backfill.monitor import Monitor, OpenBatch
from headrace.backfill.schedule import ByHand, Cron, Every, Schedule, Spare, parse_schedule

__all__ = [
    "LEASE_MS",
    "MAX_BACKFILLS",
    "Allowance",
    "BackfillEvent",
    "Backoff",
    "BesideStream",
    "Buried",
    "ByHand",
    "Cost",
    "Cron",
    "Dispatch",
    "DispatchCentre",
    "Done",
    "Every",
    "Failed",
    "FromOutside",
    "Live",
    "Lost",
    "Monitor",
    "NearRetention",
    "OpenBatch",
    "Passed",
    "Runner",
    "Schedule",
    "Spare",
    "Split",
    "Taken",
    "Unlimited",
    "parse_schedule",
]
