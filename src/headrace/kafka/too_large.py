"""The errors of what is too large for a topic or a producer, with the limit.

The client's own error does not have it.
"""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.errors import BrokerError
from headrace.kafka.lookup import CLIENT_LOG

_OF_TOPIC: Final = "max.message.bytes"
_OF_PRODUCER: Final = "message.max.bytes"
_ASKED_S: Final = 10.0


def too_large_for_producer(
    client: Mapping[str, Any], where: str, what: str, largest_bytes: int
) -> BrokerError:
    """The error that a record is larger than its producer's settings allow."""
    return _too_large(where, what, "kafka.max.request.size", client[_OF_PRODUCER], largest_bytes)


def too_large_for_topic(
    client: Mapping[str, Any], topic: str, where: str, what: str, largest_bytes: int
) -> BrokerError:
    """The error that a record, or a batch of several, is larger than a topic takes."""
    return _too_large(where, what, f"its {_OF_TOPIC}", _limit(client, topic), largest_bytes)


def _too_large(
    where: str, what: str, name: str, limit_bytes: int | None, largest_bytes: int
) -> BrokerError:
    if limit_bytes is None:
        limit, fits = f"{name} cannot be looked up by this user", False
    else:
        limit, fits = f"{name} is {limit_bytes}", largest_bytes < limit_bytes
    advice = f"set kafka.batch.size to {limit_bytes} at most" if fits else "make records smaller"
    return BrokerError(
        f"{where} did not take {what}, which are too large; {limit}, and the largest of these"
        f" records has {largest_bytes} bytes: {advice}, or raise that."
    )


def _limit(client: Mapping[str, Any], topic: str) -> int | None:
    """What the topic takes at most (bytes); None where this user may not ask for it."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        admin = AdminClient({**client, "log_level": 0}, logger=CLIENT_LOG)
        found = admin.describe_configs([resource], request_timeout=_ASKED_S)[resource].result()
        return int(found[_OF_TOPIC].value)
    except (KafkaException, KeyError, ValueError):
        return None
