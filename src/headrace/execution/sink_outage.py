"""Stub."""

from headrace.execution.handler_errors import no_connection


def sink_is_away(error: BaseException) -> bool:
    """Stub."""
    return no_connection(error)
