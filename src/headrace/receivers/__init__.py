"""Receivers: records from senders that keep them only until they are acknowledged."""

from headrace.core.extras import needs_extra
from headrace.receivers.deduplicator import Receipt
from headrace.receivers.host import Hosting, Receiver
from headrace.receivers.intake import Intake, IntakeStatistics, RetryAfter
from headrace.receivers.mqtt import MqttReceiver
from headrace.receivers.settings import HttpSettings, IntakeSettings, MqttSettings, TcpSettings
from headrace.receivers.shared_rate import ReceiverLimits

with needs_extra("receivers", "Receiving records"):
    from headrace.receivers.http import HttpReceiver
    from headrace.receivers.tcp import TcpReceiver

__all__ = [
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
]
