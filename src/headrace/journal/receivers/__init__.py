"""Receivers: records from senders that keep them only until they are acknowledged."""

from typing import TYPE_CHECKING, Final

from headrace.core.system import lazy_names
from headrace.journal.receivers.deduplicator import Receipt
from headrace.journal.receivers.host import Hosting, Receiver
from headrace.journal.receivers.intake import Intake, IntakeStatistics, RetryAfter
from headrace.journal.receivers.journal_cap import CapSettings
from headrace.journal.receivers.mqtt import MqttReceiver
from headrace.journal.receivers.settings import (
    HttpSettings,
    IntakeSettings,
    MqttSettings,
    TcpSettings,
    TlsFiles,
)
from headrace.journal.receivers.shared_rate import ReceiverLimits

if TYPE_CHECKING:
    from headrace.journal.receivers.http import HttpReceiver
    from headrace.journal.receivers.tcp import TcpReceiver

__all__ = [
    "CapSettings",
    "Hosting",
    "HttpReceiver",
    "HttpSettings",
    "Intake",
    "IntakeSettings",
    "IntakeStatistics",
    "MqttReceiver",
    "MqttSettings",
    "Receipt",
    "Receiver",
    "ReceiverLimits",
    "RetryAfter",
    "TcpReceiver",
    "TcpSettings",
    "TlsFiles",
]

_FROM: Final = {
    "HttpReceiver": "headrace.journal.receivers.http.http_receiver",
    "TcpReceiver": "headrace.journal.receivers.tcp",
}
"""Names that need an extra, and the modules that have them."""

if not TYPE_CHECKING:  # or a type checker would accept any name
    __getattr__ = lazy_names(
        "headrace.journal.receivers", _FROM, {"receivers": "Receiving records"}
    )
