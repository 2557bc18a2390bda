"""The kinds of source that a gate can stand before."""

from typing import Final

from headrace.errors import OptionError
from headrace.journal.connector import JOURNAL
from headrace.kafka.kafka_connector import KAFKA
from headrace.source.connector import Connector

CONNECTORS: Final = {connector.name: connector for connector in (KAFKA, JOURNAL)}
"""By the name that ``Gate.read`` takes, which is also the one in the ledger."""


def connector_of(source: str) -> Connector:
    """The kind of source of this name.

    Raises:
        OptionError: there is none.
    """
    if source not in CONNECTORS:
        raise OptionError(
            f"The source is {source!r}; a gate reads from {', '.join(sorted(CONNECTORS))}."
        )
    return CONNECTORS[source]
