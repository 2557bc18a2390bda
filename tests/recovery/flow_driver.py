"""A flow of two stages in a process of its own, which can be killed and started again.

    python -m tests.recovery.flow_driver JOB

As ``tests.recovery.driver``, whose sink its second stage has. The stages are linked by topics if
the job names brokers, the second one being named after the first, and by journals in its folder
if not. It says ``parsing`` when the handler of the first stage has answered what is to be written
to the channel between them. It ends when the sink has so many records as the job says.
"""

import json
import sys
import threading
from typing import Final

from pyspark.sql import DataFrame
from tests.recovery.driver import Sink, end_with_input, say, session
from tests.recovery.job import Job

import headrace
from headrace.flow import Flow, RunningFlow, journal, kafka

FLOW: Final = "shop"
BETWEEN: Final = "-parsed"


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
    for name, place in (("raw", job.topic), ("parsed", job.topic + BETWEEN)):
        found = kafka(place, job.servers) if job.servers else journal(str(job.path / place))
        flow.channel(name, found)
    options = {"maxOffsetsPerTrigger": 60}

    @flow.stage("parse", reads="raw", writes="parsed", interval="500 ms", options=options)
    def parse(df: DataFrame, _batch: headrace.Batch) -> DataFrame:
        say("parsing")
        # In partitions that nobody can foretell: what runs again has its records in other places.
        return df.select("value").repartition(2)

    flow.stage("store", reads="parsed", interval="500 ms", options=options)(Sink(job))
    return flow


def stay_until_stored(running: RunningFlow, job: Job) -> None:
    """Return when the sink has all."""
    while not running.await_termination(1):
        files = (job.path / "sink").glob("*.json")
        if sum(len(json.loads(file.read_text())) for file in files) >= job.records:
            return


if __name__ == "__main__":
    main(Job.from_json(sys.argv[1]))
