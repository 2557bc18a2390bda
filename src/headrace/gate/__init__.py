"""The gate: rates, the ledger and failed batches, behind `headrace.Gate`."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.{name}"})
