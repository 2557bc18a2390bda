"""Decoding of record values into typed columns; values that do not fit are rejected."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.{name}"})
