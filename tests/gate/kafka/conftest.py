"""The engines that read Kafka."""

from importlib.util import find_spec
from typing import Final, cast

import pytest
from tests.gate.kafka import reads

from headrace.core.native import Engine

_IS_NATIVE: Final = find_spec("headrace_native") is not None
"""`make` says so where there is no cargo, and `.ci/run` requires it."""

_ENGINES: Final = tuple(Engine) if _IS_NATIVE else (Engine.PYTHON,)

collect_ignore_glob = [] if _IS_NATIVE else ["test_native_*.py"]

_NIGHTLY: Final = {
    "test_offsets_that_are_gone_stop_the_read_or_are_skipped_and_logged_on_request": Engine.NATIVE,
    "test_columns_and_values_are_the_native_connectors": Engine.PYTHON,
}
"""Slow tests that `make test` runs with the other engine alone."""


@pytest.fixture(params=_ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine of `reads.reader_config`: a test that uses this runs with each."""
    chosen = cast(Engine, request.param)
    monkeypatch.setattr(reads, "engine", chosen)
    return chosen


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a slow test with its second engine to the nightly tier."""
    parameters = getattr(item, "callspec", None)
    name = getattr(item, "originalname", "")
    if _IS_NATIVE and parameters and parameters.params.get("engine") is _NIGHTLY.get(name, "none"):
        item.add_marker(pytest.mark.nightly)
