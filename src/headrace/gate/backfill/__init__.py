"""Backfills, which run failed batches again: their schedules, their budgets and the scheduler."""
