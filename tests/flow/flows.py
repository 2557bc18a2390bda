"""Flows for tests, whose topics are never asked for."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

from headrace.flow import Flow, kafka

NOWHERE = "nowhere:9092"


def nothing(df: DataFrame, batch: Any) -> None:
    """A sink."""


def a_flow(*stages: tuple[str, str, Iterable[str]]) -> Flow:
    """A flow of stages, each with its name and what it reads and writes."""
    flow = Flow("shop", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
    used = (channel for _, reads, writes in stages for channel in (reads, *writes))
    for name in dict.fromkeys(used):
        flow.channel(name, kafka(name, NOWHERE))
    for name, reads, writes in stages:
        flow.stage(name, reads=reads, writes=writes)(nothing)
    return flow
