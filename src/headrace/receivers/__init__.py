"""Receivers: records from senders that keep them only until they are acknowledged."""

from headrace.core.system import needs_extra

with needs_extra("receivers", "Receiving records"):
    from headrace.receivers.deduplicator import Receipt
    from headrace.receivers.host import Hosting, Receiver, Reloadable
    from headrace.receivers.http import HttpReceiver
    from headrace.receivers.intake import Intake, IntakeStatistics, RetryAfter
    from headrace.receivers.journal_cap import CapSettings
    from headrace.receivers.mqtt import MqttReceiver
    from headrace.receivers.settings import (
        HttpSettings,
        IntakeSettings,
        MqttSettings,
        TcpSettings,
        TlsFiles,
    )
    from headrace.receivers.shared_rate import ReceiverLimits
    from headrace.receivers.tcp import TcpReceiver

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
    "Reloadable",
    "RetryAfter",
    "TcpReceiver",
    "TcpSettings",
    "TlsFiles",
]
