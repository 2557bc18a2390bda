"""A flow as it has been declared, for those who check, run and mend it."""

from dataclasses import dataclass

from headrace.flow.graph import Graph
from headrace.flow.zookeeper_settings import ZookeeperSettings


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `headrace.flow.Flow` was told.

    Attributes:
        name: The flow's.
        ledger: The URL of its ledger, in full.
        checkpoints: The folder in which each stage has its checkpoint.
        signals: How its stages tell each other of pressure; None for over the ledger.
        graph: Its stages and channels.
    """

    name: str
    ledger: str
    checkpoints: str
    signals: ZookeeperSettings | None
    graph: Graph

    def gate(self, stage: str) -> str:
        """The name of a stage's gate in the ledger."""
        return f"{self.name}.{stage}"
