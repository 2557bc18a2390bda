"""What every source shares: it plans batches of a `Log` under a gate, and shows them to Spark."""
