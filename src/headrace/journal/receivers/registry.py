"""Registry of the receivers of ``headrace receive``, each with its settings class.

A receiver is imported when it is constructed, because it may need an extra. The command and the
sections of the settings file are built from the fields of the settings classes.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final

from headrace.core.system import needs_extra
from headrace.journal.receivers.hosting import PlacedReceiver
from headrace.journal.receivers.settings import HttpSettings, MqttSettings, TcpSettings

RECEIVERS: Final[Mapping[str, tuple[str, Any]]] = {
    "http": ("headrace.journal.receivers.http.http_receiver.HttpReceiver", HttpSettings),
    "tcp": ("headrace.journal.receivers.tcp.TcpReceiver", TcpSettings),
    "mqtt": ("headrace.journal.receivers.mqtt.mqtt_receiver.MqttReceiver", MqttSettings),
}
"""Class and settings class of each receiver, by the command's name."""


def make_receiver(name: str, settings: object) -> PlacedReceiver:
    """Construct the receiver of a command with these settings.

    Raises:
        SetupError: A package that the receiver needs is not installed.
    """
    module, _, kind = RECEIVERS[name][0].rpartition(".")
    with needs_extra("receivers", "Receiving records"):
        receiver: PlacedReceiver = getattr(importlib.import_module(module), kind)(settings)
    return receiver
