"""Records from an MQTT 5 broker."""

from headrace.receivers.mqtt.mqtt_receiver import MqttReceiver

__all__ = ["MqttReceiver"]
