"""Records over HTTP."""

from headrace.receivers.http.http_receiver import HttpReceiver

__all__ = ["HttpReceiver"]
