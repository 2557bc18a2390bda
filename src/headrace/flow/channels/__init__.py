"""Channels: what links a stage of a flow that writes to those that read."""

from headrace.flow.channels.channel import Channel, ChannelQueue
from headrace.flow.channels.journal_channel import JournalChannel, journal
from headrace.flow.channels.kafka_channel import KafkaChannel, kafka

__all__ = [
    "Channel",
    "ChannelQueue",
    "JournalChannel",
    "KafkaChannel",
    "journal",
    "kafka",
]
