"""A schema registry for the tests of formats."""

from collections.abc import Iterator

import pytest
from tests.services.registry import RegistryServer, registry_server


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server
