"""The ledgers that this process has open, one of each, and which gate keeps its books in which."""

import threading
from typing import Final

from headgate.ledger import Ledger
from headgate.ledger.patience import QUERY_PATIENCE_S

_lock: Final = threading.Lock()
_open: Final[dict[str, Ledger]] = {}
_of_gate: Final[dict[str, str]] = {}


def shared_ledger(url: str) -> Ledger:
    """The process's one handle on a ledger, opened at the first call; then it has patience.

    Args:
        url: in full, as `headgate.ledger.normalize_url` writes it.

    Raises:
        LedgerError: it cannot be opened.
    """
    with _lock:
        if url not in _open:
            _open[url] = Ledger.open(url, patience_s=QUERY_PATIENCE_S)
        return _open[url]


def keep_books(gate: str, url: str) -> Ledger:
    """Remember which ledger a gate uses, for the listener, which only hears the gate's name.

    Nothing is waited for, since no query depends on it yet.

    Raises:
        LedgerError: it cannot be opened, even if it could before.
    """
    Ledger.open(url).close()
    ledger = shared_ledger(url)
    with _lock:
        _of_gate[gate] = url
    return ledger


def ledger_of(gate: str, default_url: str | None) -> Ledger | None:
    """The ledger of a gate; the default's where this process did not make the gate."""
    with _lock:
        url = _of_gate.get(gate, default_url)
    return shared_ledger(url) if url is not None else None
