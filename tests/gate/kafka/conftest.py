"""The engines that read Kafka."""

from importlib.util import find_spec
from typing import Final, cast

import pytest
from tests.gate.kafka import reads

from headrace.core.native import Engine

# `make` says so where there is no cargo, and `.ci/run` requires it.
_IS_NATIVE: Final = find_spec("headrace_native") is not None
_ENGINES: Final = tuple(Engine) if _IS_NATIVE else (Engine.PYTHON,)
collect_ignore_glob = [] if _IS_NATIVE else ["test_native_*.py"]


@pytest.fixture(params=_ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine of `reads.reader_config`: a test that uses this runs with each."""
    chosen = cast(Engine, request.param)
    monkeypatch.setattr(reads, "engine", chosen)
    return chosen
