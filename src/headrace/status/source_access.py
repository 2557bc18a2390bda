"""How the records of a batch are read again: from where the ledger says."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.ledger import Ledger

if TYPE_CHECKING:
    from headrace.source.connector import Connector


class SourceAccess(NamedTuple):
    """How the records of a batch are read: its source's connector, and the stream's options."""

    connector: "Connector"
    options: dict[str, str]


def source_access(
    ledger: Ledger, gate_of: Mapping[str, str], options: Mapping[str, str]
) -> dict[str, SourceAccess]:
    """How the records of each batch are read, by the batch's key; ``gate_of`` has its gate.

    An address among the options replaces the ledger's.
    """
    # It imports pyspark, which takes a second; commands that only list do without.
    from headrace.execution.spark_session import connector_of  # noqa: PLC0415

    source_of = {gate.name: gate.source for gate in ledger.gates.all()}
    addresses = {
        key: (source_of[gate], ledger.batches.servers(key)) for key, gate in gate_of.items()
    }
    known = {}
    for source, servers in set(addresses.values()):
        connector = connector_of(source)
        known[source, servers] = SourceAccess(connector, connector.located(options, servers))
    return {key: known[address] for key, address in addresses.items()}
