"""Headrace's warnings have time and level where the program configures no logging."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import pytest

from headrace.core.log_lines import show_lines


@contextmanager
def unconfigured() -> Iterator[logging.Logger]:
    """The root logger of a program that has not configured it; all is as before afterwards."""
    root, own = logging.getLogger(), logging.getLogger("headrace")
    py4j = logging.getLogger("py4j.clientserver")
    before = root.handlers, own.handlers, py4j.filters
    root.handlers, own.handlers, py4j.filters = [], [], []
    yield root
    root.handlers, own.handlers, py4j.filters = before


def test_a_warning_is_one_line_with_time_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured():
        show_lines()
        show_lines()
        logging.getLogger("headrace.execution").warning("Gate %r waits.", "orders")
    line = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING headrace\.execution: Gate 'orders' waits\.\n"
    )
    assert re.fullmatch(line, capsys.readouterr().err)


def test_a_program_with_a_handler_of_its_own_has_each_line_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = StringIO()
    with unconfigured() as root:
        show_lines()
        root.addHandler(logging.StreamHandler(program))
        logging.getLogger("headrace.execution").warning("Gate %r waits.", "orders")
    assert (program.getvalue(), capsys.readouterr().err) == ("Gate 'orders' waits.\n", "")


def test_what_spark_reports_is_not_repeated_by_py4j() -> None:
    program = StringIO()
    with unconfigured() as root:
        show_lines()
        root.addHandler(logging.StreamHandler(program))
        logger = logging.getLogger("py4j.clientserver")
        logger.error("There was an exception while executing the Python Proxy on the Python Side.")
        logger.error("Another error.")
    assert program.getvalue() == "Another error.\n"
