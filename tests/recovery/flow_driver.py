"""A flow of four stages in a process of its own, which can be killed and started again.

    python -m tests.recovery.flow_driver JOB

Its last stage has the sink of ``tests.recovery.driver``. The topics between the stages are named
after the first one. It says ``parsing`` when the handler of the first stage has returned what is to
be written to the channel after it. It ends when the sink has as many records as the job says.
"""

import json
import sys
import threading
from typing import Final

from pyspark.sql import DataFrame
from tests.recovery.driver import Sink, end_with_input, say, session
from tests.recovery.job import Job

import headrace
from headrace.flow import Flow, RunningFlow, kafka

FLOW: Final = "shop"
STAGES: Final = ("parse", "price", "pack", "store")
CHANNELS: Final = ("raw", "parsed", "priced", "packed")
"""The one that each stage reads."""


def main(job: Job) -> None:
    """Do the job."""
    spark = session(job.master)
    flow = declared(job)
    say("ready")
    if not sys.stdin.readline():
        return
    threading.Thread(target=end_with_input, daemon=True).start()
    with flow.start(spark) as running:
        stay_until_stored(running, job)


def declared(job: Job) -> Flow:
    """The flow."""
    flow = Flow(FLOW, ledger=job.ledger, checkpoints=job.path / "checkpoints")
    for channel in CHANNELS:
        flow.channel(channel, kafka(topic_of(job.topic, channel), job.servers))
    options = {"maxOffsetsPerTrigger": 60}

    @flow.stage("parse", reads="raw", writes="parsed", interval="500 ms", options=options)
    def parse(df: DataFrame, _batch: headrace.Batch) -> DataFrame:
        say("parsing")
        # In partitions that nobody can foretell: what runs again has its records in other places.
        return df.select("value").repartition(2)

    def copied(df: DataFrame, _batch: headrace.Batch) -> DataFrame:
        return df.select("value")

    for name, reads, writes in zip(STAGES[1:3], CHANNELS[1:3], CHANNELS[2:], strict=True):
        flow.stage(name, reads=reads, writes=writes, interval="500 ms", options=options)(copied)
    flow.stage("store", reads="packed", interval="500 ms", options=options)(Sink(job))
    return flow


def topic_of(topic: str, channel: str) -> str:
    """Return the topic of a channel, from that of the first one."""
    return topic if channel == CHANNELS[0] else f"{topic}-{channel}"


def stay_until_stored(running: RunningFlow, job: Job) -> None:
    """Return when the sink has all."""
    while not running.await_termination(1):
        files = (job.path / "sink").glob("*.json")
        if sum(len(json.loads(file.read_text())) for file in files) >= job.records:
            return


if __name__ == "__main__":
    main(Job.from_json(sys.argv[1]))
