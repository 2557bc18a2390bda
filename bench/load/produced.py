"""Producers that send a Kafka broker one message after the other, each when the last is durable."""

import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from bench.load.lines import PATIENCE_S
from bench.load.records import chunk


def all_at_once(
    servers: str, topic: str, records: int, each: int, connections: int
) -> dict[str, list[float] | float]:
    """Produce so many records, ``each`` of them at a time; how long each waited for its answer."""
    values = chunk(each).splitlines()
    requests = iter(range(-(-records // each)))
    delays_ms: list[float] = []

    def produce(producer: Producer) -> None:
        for _ in requests:
            sent_s = time.perf_counter()
            for value in values:
                producer.produce(topic, value)
            if producer.flush(PATIENCE_S):
                raise ValueError("the broker does not answer")
            delays_ms.append((time.perf_counter() - sent_s) * 1000)

    settings = {"bootstrap.servers": servers, "acks": "all", "linger.ms": 0, "log_level": 0}
    producers = [Producer(settings) for _ in range(connections)]
    for producer in producers:
        producer.list_topics(topic, timeout=PATIENCE_S)  # connected before the clock starts
    with ThreadPoolExecutor(connections) as threads:
        began_s = time.perf_counter()
        for sent in [threads.submit(produce, producer) for producer in producers]:
            sent.result()
        return {"seconds": time.perf_counter() - began_s, "delays_ms": delays_ms}
