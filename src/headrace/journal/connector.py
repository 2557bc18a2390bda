"""A journal as a gate knows it."""

from collections.abc import Mapping
from typing import Final

from headrace.journal.log import JournalLog
from headrace.journal.options import parse_options
from headrace.journal.replay import replay_options
from headrace.journal.source import JournalSource
from headrace.source.connector import OF_A_GATE, Connector


def _check(options: Mapping[str, str]) -> None:
    JournalLog(parse_options(options, streaming=True)).topics(must_exist=True)


def _bounded_log(options: Mapping[str, str]) -> JournalLog:
    return JournalLog(parse_options(options, streaming=False))


def _servers(options: Mapping[str, str]) -> str:
    given = {name.lower(): value for name, value in options.items()}
    return given["path"]


def _located(options: Mapping[str, str], path: str | None) -> dict[str, str]:
    complete = dict(options)
    if "path" not in {name.lower() for name in options} and path is not None:
        complete["path"] = path
    parse_options(OF_A_GATE | complete, streaming=True)
    return complete


JOURNAL: Final = Connector(
    "journal", JournalSource, _check, replay_options, _bounded_log, _servers, _located
)
