"""The lag of each partition, and the same under the names of Kafka's exporters."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from headrace.ledger import Ledger
from headrace.ledger.metric_rows import GateNow
from headrace.metrics.text import Family, MetricKind, gauge, labels_text
from headrace.status.sources import SourceAnswer

CONSUMER_LAG = "kafka_consumergroup_lag"
"""As danielqsj's kafka_exporter calls it; the consumer group is the gate."""


def partition_families(
    ledger: Ledger,
    gates: Sequence[GateNow],
    answers: Mapping[str, SourceAnswer],
    *,
    per_partition: bool,
    kafka_exporter_names: bool,
) -> list[Family]:
    """What no batch of a gate has begun yet of each partition: those of its newest batch.

    Of a gate whose source was asked since then, all partitions that it has read.
    """
    own = gauge("partition_lag_records", "Records of a partition that no batch has begun yet.")
    theirs = Family(CONSUMER_LAG, MetricKind.GAUGE, "Records of a partition that are not read.")
    now = {gate.name: gate for gate in gates}
    asked = {
        name: answer
        for name, answer in answers.items()
        if name in now and answer.asked_ms >= (now[name].created_ms or 0)
    }

    def add(gate: str, topic: str, partition: int, lag: int) -> None:
        if per_partition:
            own.add(_labels(gate, topic, partition), lag)
        if kafka_exporter_names and now[gate].source == "kafka":
            theirs.add(_consumer_labels(gate, topic, partition), lag)

    for gate, topic, partition, until, latest, _ in ledger.metrics.partitions():
        if gate in now and gate not in asked and latest is not None:
            add(gate, topic, partition, max(latest - until, 0))
    for gate, answer in asked.items():
        for place, each in answer.partitions.items():
            add(gate, place.topic, place.partition, each.lag)
    return [own, theirs]


@lru_cache(maxsize=50_000)
def _labels(gate: str, topic: str, partition: int) -> str:
    return labels_text(gate=gate, topic=topic, partition=partition)


@lru_cache(maxsize=50_000)
def _consumer_labels(gate: str, topic: str, partition: int) -> str:
    return labels_text(consumergroup=gate, topic=topic, partition=partition)
