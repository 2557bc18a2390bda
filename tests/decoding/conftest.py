"""A schema registry for the tests of formats."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.services.registry import RegistryServer, registry_server

# `make` says so where there is no cargo, and `.ci/run` requires it.
collect_ignore_glob = [] if find_spec("headrace_native") else ["test_native_*.py"]


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server
