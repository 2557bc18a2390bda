"""Receiver of records over HTTP."""

from headrace.journal.receivers.http.http_receiver import HttpReceiver

__all__ = ["HttpReceiver"]
