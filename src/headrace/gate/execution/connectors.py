"""Kinds of sources by name; each is imported when it is asked for, without the others."""

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
"""The module that has a source, and its name there, by the name that ``Gate.read`` takes."""

CONNECTORS: Final[dict[str, "Connector"]] = {}
"""Those that were asked for, by the name that ``Gate.read`` takes; the ledger has the same."""


def connector_of(source: str) -> "Connector":
    """The kind of source of this name.

    Raises:
        OptionError: there is none.
    """
    if source not in SOURCES:
        raise OptionError(
            f"The source is {source!r}; a gate reads from {', '.join(sorted(SOURCES))}."
        )
    if source not in CONNECTORS:
        module, name = SOURCES[source]
        CONNECTORS[source] = getattr(importlib.import_module(module), name)
    return CONNECTORS[source]
