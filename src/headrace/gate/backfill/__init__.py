"""Backfills: the schedule, the budget and the scheduler by which failed batches are run again."""
