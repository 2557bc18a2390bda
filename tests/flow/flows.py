"""Flows for tests, and channels that are never opened."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from headrace.control import InputQueue
from headrace.flow import Flow
from headrace.ledger import Ledger


@dataclass(frozen=True)
class NoChannel:
    """A channel that is only declared."""

    location: str
    has_one_writer: bool = False
    lane: int = 0

    @property
    def place(self) -> str:
        return self.location

    @property
    def written_place(self) -> str:
        return f"{self.location} {self.lane}"

    def identity(self) -> str:
        raise AssertionError("asked")

    def write(self, df: DataFrame, batch_key: str, ledger: Ledger) -> None:
        raise AssertionError("written")

    @property
    def source(self) -> str:
        return "kafka"

    def check_reachable(self) -> None:
        raise AssertionError("reached")

    def read_options(self, ledger_url: str) -> dict[str, str]:
        raise AssertionError("read")

    def queue(self, gate: str, ledger: Ledger) -> "NoQueue":
        raise AssertionError("looked at")


class NoQueue:
    def measure(self) -> InputQueue:
        raise AssertionError("looked at")

    def close(self) -> None:
        raise AssertionError("closed")


def nothing(df: DataFrame, batch: Any) -> None:
    """A sink."""


def a_flow(*stages: tuple[str, str, Iterable[str]], channels: Iterable[str] = ()) -> Flow:
    """A flow of stages, each with its name and what it reads and writes."""
    flow = Flow("shop", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
    used = (channel for _, reads, writes in stages for channel in (reads, *writes))
    for name in dict.fromkeys([*channels, *used]):
        flow.channel(name, NoChannel(f"journal {name}"))
    for name, reads, writes in stages:
        flow.stage(name, reads=reads, writes=writes)(nothing)
    return flow
