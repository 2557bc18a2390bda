"""Kinds of sources by name; each is imported on demand, without the others."""

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
"""The module and the attribute of each kind of source, by its name in ``Gate.read``."""

CONNECTORS: Final[dict[str, "Connector"]] = {}
"""The imported kinds of sources, by their names in ``Gate.read`` and in the ledger."""


def connector_of(source: str) -> "Connector":
    """Return the kind of source of a name.

    Raises:
        OptionError: there is no such kind.
    """
    if source not in SOURCES:
        raise OptionError(
            f"The source is {source!r}; a gate reads from {', '.join(sorted(SOURCES))}."
        )
    if source not in CONNECTORS:
        module, name = SOURCES[source]
        CONNECTORS[source] = getattr(importlib.import_module(module), name)
    return CONNECTORS[source]
