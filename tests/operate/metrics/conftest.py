"""A ledger with the gate ``orders``, on each kind of database."""

from tests.gate.ledger.conftest import clock, ledger, new_sqlite_url, new_url, url

__all__ = ["clock", "ledger", "new_sqlite_url", "new_url", "url"]
