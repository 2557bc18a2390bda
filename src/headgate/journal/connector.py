"""A journal as a gate knows it."""

from collections.abc import Mapping
from typing import Final

from headgate.journal.log import JournalLog
from headgate.journal.options import parse_options
from headgate.journal.replay import replay_options
from headgate.journal.source import JournalSource
from headgate.source.connector import Connector


def _check(options: Mapping[str, str]) -> None:
    JournalLog(parse_options(options, streaming=True)).topics(must_exist=True)


def _bounded_log(options: Mapping[str, str]) -> JournalLog:
    return JournalLog(parse_options(options, streaming=False))


def _servers(options: Mapping[str, str]) -> str:
    given = {name.lower(): value for name, value in options.items()}
    return given["path"]


JOURNAL: Final = Connector("journal", JournalSource, _check, replay_options, _bounded_log, _servers)
