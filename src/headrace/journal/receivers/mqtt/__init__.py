"""Receiver of records from an MQTT 5 broker."""

from headrace.journal.receivers.mqtt.mqtt_receiver import MqttReceiver

__all__ = ["MqttReceiver"]
