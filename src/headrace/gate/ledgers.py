"""The ledgers that this process has open, one of each, and which gates are in which."""

import threading
from typing import Final
from uuid import UUID

from headrace.gate.stream_state import state_of
from headrace.ledger import Ledger
from headrace.ledger.patience import QUERY_PATIENCE_S

_lock: Final = threading.Lock()
_open: Final[dict[str, Ledger]] = {}
_of_gate: Final[dict[str, list[str]]] = {}


def shared_ledger(url: str) -> Ledger:
    """The process's one handle on a ledger, opened at the first call; then it has patience.

    Args:
        url: in full, as `headrace.ledger.normalize_url` writes it.

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
        urls = _of_gate.setdefault(gate, [])
        if url in urls:
            urls.remove(url)
        urls.append(url)
    return ledger


def ledger_of(gate: str, run: UUID, default_url: str | None) -> Ledger | None:
    """The ledger of a gate; the default's where this process did not make the gate.

    Gates of one name may be in several ledgers: the one counts whose query it is, or the newest.

    Args:
        gate: its name.
        run: the run of its query, as Spark names it.
        default_url: None where there is none.
    """
    with _lock:
        urls = _of_gate.get(gate) or ([] if default_url is None else [default_url])
    mine = [url for url in urls if state_of(url, gate).is_run(run)] or urls
    return shared_ledger(mine[-1]) if mine else None
