"""Receivers on Spark's executors, which the driver starts, watches, restarts and stops."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(
    __name__, {"spark": "headrace.{name}", "receivers": "Receiving records"}
)
