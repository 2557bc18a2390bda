"""Receivers on Spark's executors. The driver starts, watches, restarts and stops the receivers."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(
    __name__, {"spark": "headrace.{name}", "receivers": "Receiving records"}
)
