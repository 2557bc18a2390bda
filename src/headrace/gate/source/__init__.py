"""Common part of all sources: they plan batches of a `Log` under a gate, and give them to Spark."""
