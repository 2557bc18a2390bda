"""Receivers, which write records from senders into a journal and acknowledge durable records."""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(__name__, {"receivers": "Receiving records"})
