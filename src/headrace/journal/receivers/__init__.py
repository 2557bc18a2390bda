"""Receivers: records from senders that keep them only until they are acknowledged."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"receivers": "Receiving records"})
