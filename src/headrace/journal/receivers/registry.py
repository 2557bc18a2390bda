"""Registry of the receivers of ``headrace receive``, each with its settings class.

A receiver's module is imported only when the receiver is constructed, because it may need an
optional package. The options of the command and the keys of the settings file come from the fields
of the settings classes.
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
"""Import path of the receiver class and the settings class, by the command's name."""


def make_receiver(name: str, settings: object) -> PlacedReceiver:
    """Import and construct a receiver.

    ``name`` is the command's name, such as ``http``; ``settings`` are an instance of its settings
    class.

    Raises:
        SetupError: A package that the receiver needs is not installed.
    """
    module, _, kind = RECEIVERS[name][0].rpartition(".")
    with needs_extra("receivers", "Receiving records"):
        receiver: PlacedReceiver = getattr(importlib.import_module(module), kind)(settings)
    return receiver
