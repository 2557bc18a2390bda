"""Receivers: records from senders that keep them only until they are acknowledged."""

from headrace.receivers.host import Hosting
from headrace.receivers.http import HttpReceiver
from headrace.receivers.intake import Intake, IntakeStatistics, Later
from headrace.receivers.mqtt import MqttReceiver
from headrace.receivers.mqtt_settings import MqttSettings
from headrace.receivers.once import Receipt
from headrace.receivers.protocol import Receiver
from headrace.receivers.rates import Limits
from headrace.receivers.settings import HttpSettings, IntakeSettings, TcpSettings
from headrace.receivers.tcp import TcpReceiver

__all__ = [
    "Hosting",
    "HttpReceiver",
    "HttpSettings",
    "Intake",
    "IntakeSettings",
    "IntakeStatistics",
    "Later",
    "Limits",
    "MqttReceiver",
    "MqttSettings",
    "Receipt",
    "Receiver",
    "TcpReceiver",
    "TcpSettings",
]
