"""Kinds of sources by name. Each kind is imported only when it is used."""

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headrace.errors import OptionError

if TYPE_CHECKING:
    from headrace.gate.source.connector import Connector

SOURCES: Final = MappingProxyType(
    {
        "kafka": ("headrace.gate.kafka.kafka_source", "KAFKA"),
        "journal": ("headrace.journal.journal_source", "JOURNAL"),
    }
)
"""Module and attribute name of each `Connector`, by the name of the source in ``Gate.read``."""

CONNECTORS: Final[dict[str, "Connector"]] = {}
"""Imported connectors, by the name of the source in ``Gate.read`` and in the ledger."""


def connector_of(source: str) -> "Connector":
    """Return the connector for the name of a source, after importing it.

    Raises:
        OptionError: there is no source of this name.
    """
    if source not in SOURCES:
        raise OptionError(
            f"The source is {source!r}; a gate reads from {', '.join(sorted(SOURCES))}."
        )
    if source not in CONNECTORS:
        module, name = SOURCES[source]
        CONNECTORS[source] = getattr(importlib.import_module(module), name)
    return CONNECTORS[source]
