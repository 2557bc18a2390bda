"""Receivers on Spark's executors: started, watched, restarted and stopped by the driver."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(
    __name__, {"spark": "headrace.{name}", "receivers": "Receiving records"}
)
