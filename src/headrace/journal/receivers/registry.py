"""The receivers of ``headrace receive``, each with its settings: all that others know of them.

A receiver is imported when it is made, for it may need an extra. The command and the sections of
the settings file are made of the settings' fields.
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
"""By the command's name: the class, and that of its settings, with the text of its help."""


def make_receiver(name: str, settings: object) -> PlacedReceiver:
    """Return the receiver of a command with these settings.

    Raises:
        SetupError: A package that it needs is not installed.
    """
    module, _, kind = RECEIVERS[name][0].rpartition(".")
    with needs_extra("receivers", "Receiving records"):
        made: PlacedReceiver = getattr(importlib.import_module(module), kind)(settings)
    return made
