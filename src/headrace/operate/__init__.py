"""What operators see and do: commands, dashboard, status, metrics, local services."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"spark": "headrace.{name}"})
