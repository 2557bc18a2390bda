"""Backfill: when a failed batch is run again, how much of it at once, and by whom."""
