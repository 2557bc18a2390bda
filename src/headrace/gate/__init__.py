"""Implementation of `headrace.Gate`: rates, the ledger, and the handling of failed batches."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.{name}"})
