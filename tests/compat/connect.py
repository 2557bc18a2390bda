"""Environment variables that configure the suite where it runs over Spark Connect."""

import os
from dataclasses import dataclass
from typing import Final

_REMOTE: Final = "HEADRACE_TEST_REMOTE"
_BROKER: Final = "HEADRACE_TEST_BROKER"
_LEDGER: Final = "HEADRACE_TEST_LEDGER"


@dataclass(frozen=True)
class Surroundings:
    """The services of a client that starts none itself.

    Attributes:
        remote: the Spark Connect server's address.
        broker: Kafka's.
        ledger: the URL of a PostgreSQL database.
    """

    remote: str
    broker: str
    ledger: str

    def variables(self) -> dict[str, str]:
        return {_REMOTE: self.remote, _BROKER: self.broker, _LEDGER: self.ledger}


def surroundings() -> Surroundings | None:
    """Those of this process; None where it starts its own."""
    if _REMOTE not in os.environ:
        return None
    return Surroundings(os.environ[_REMOTE], os.environ[_BROKER], os.environ[_LEDGER])
