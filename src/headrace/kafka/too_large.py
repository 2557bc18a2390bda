"""The errors of records that are too large, with the limit, which the client's errors lack."""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.errors import BrokerError
from headrace.kafka.lookup import CLIENT_LOG

_OF_TOPIC: Final = "max.message.bytes"
_OF_PRODUCER: Final = "message.max.bytes"
_ASKED_S: Final = 10.0


def too_large(
    client: Mapping[str, Any], topic: str | None, where: str, what: str, largest_bytes: int
) -> BrokerError:
    """The error that records are larger than a topic takes, or, without one, than their producer.

    A topic may refuse a batch of several records of which each would fit.
    """
    if topic is None:
        name, limit_bytes = "kafka.max.request.size", client[_OF_PRODUCER]
    else:
        name, limit_bytes = f"its {_OF_TOPIC}", _limit(client, topic)
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
