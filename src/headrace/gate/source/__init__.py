"""Common code of all sources: they plan batches of a `Log` under a gate for Spark."""
