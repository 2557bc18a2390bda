"""Benchmarks: Headrace side by side with Spark's own Kafka connector, and its parts alone."""
