"""Commands, dashboard, status, metrics and local services for operators."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.{name}"})
