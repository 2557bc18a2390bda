from headrace.journal.receivers.deduplicator import Receipt as Receipt
from headrace.journal.receivers.event_log import event_of as event_of
from headrace.journal.receivers.hosting import (
    Hosting as Hosting,
    Listener as Listener,
    PlacedReceiver as PlacedReceiver,
    Receiver as Receiver,
    host as host,
)
from headrace.journal.receivers.http.http_receiver import HttpReceiver as HttpReceiver
from headrace.journal.receivers.intake import (
    Intake as Intake,
    IntakeStatistics as IntakeStatistics,
    RetryAfter as RetryAfter,
)
from headrace.journal.receivers.journal_cap import CapSettings as CapSettings
from headrace.journal.receivers.mqtt import MqttReceiver as MqttReceiver
from headrace.journal.receivers.option import Option as Option, option_of as option_of
from headrace.journal.receivers.registry import (
    RECEIVERS as RECEIVERS,
    make_receiver as make_receiver,
)
from headrace.journal.receivers.settings import (
    TOKEN_VARIABLE as TOKEN_VARIABLE,
    HttpSettings as HttpSettings,
    IntakeSettings as IntakeSettings,
    MqttSettings as MqttSettings,
    TcpSettings as TcpSettings,
    TlsFiles as TlsFiles,
)
from headrace.journal.receivers.settings_file import (
    SettingsFile as SettingsFile,
    default_file as default_file,
    described_fields as described_fields,
    sentences as sentences,
)
from headrace.journal.receivers.shared_rate import ReceiverLimits as ReceiverLimits
from headrace.journal.receivers.tcp import TcpReceiver as TcpReceiver

__all__: list[str]
