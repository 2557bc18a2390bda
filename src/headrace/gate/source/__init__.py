"""Code that all sources share: planning the batches of a `Log` for Spark, under a gate."""
