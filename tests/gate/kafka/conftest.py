"""The engines that read Kafka."""

from importlib.util import find_spec
from typing import Final, cast

import pytest
from tests.gate.kafka import reads

from headrace.core.native import Engine

# `make` says so where there is no cargo, and `.ci/run` requires it.
_ENGINES: Final = tuple(Engine) if find_spec("headrace_native") else (Engine.PYTHON,)


@pytest.fixture(params=_ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine of `reads.reader_config`: a test that uses this runs with each."""
    chosen = cast(Engine, request.param)
    monkeypatch.setattr(reads, "engine", chosen)
    return chosen
