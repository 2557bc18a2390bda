"""Channels: what links a stage of a flow that writes to those that read."""

from headgate.flow.channels.journal_channel import JournalChannel, journal
from headgate.flow.channels.kafka_channel import KafkaChannel, kafka
from headgate.flow.channels.protocol import Channel, ChannelQueue, WrittenBatch

__all__ = [
    "Channel",
    "ChannelQueue",
    "JournalChannel",
    "KafkaChannel",
    "WrittenBatch",
    "journal",
    "kafka",
]
