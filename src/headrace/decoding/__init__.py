"""Decodes records' values into typed columns, and has the gate reject those that do not fit."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.{name}"})
