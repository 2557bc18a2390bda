"""Backpressure and zero loss for PySpark Structured Streaming."""

__version__ = "0.1.0.dev0"
