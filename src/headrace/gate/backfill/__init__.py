"""Backfill: the schedule, the budget and the owner of the runs of failed batches."""
