"""Receivers: records from senders that keep them only until they are acknowledged."""

from headgate.receivers.host import Hosting
from headgate.receivers.http import HttpReceiver
from headgate.receivers.intake import Intake, IntakeStatistics, Later
from headgate.receivers.mqtt import MqttReceiver
from headgate.receivers.mqtt_settings import MqttSettings
from headgate.receivers.once import Receipt
from headgate.receivers.protocol import Receiver
from headgate.receivers.rates import Limits
from headgate.receivers.settings import HttpSettings, IntakeSettings, TcpSettings
from headgate.receivers.tcp import TcpReceiver

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
