"""Common parts of pages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment

from headrace.core.timing import wall_clock_ms
from headrace.dashboard.ledger_link import LedgerLink
from headrace.dashboard.live import Look, Revision
from headrace.errors import HeadraceError
from headrace.ledger import GateRecord, Ledger

Query = Mapping[str, str]
"""The query of an address; of a name that comes twice, the last."""

MOST_NAME: Final = 1_000
"""The longest name in an address (characters)."""

_HIGHEST_ID: Final = 2**63 - 1


class NotFoundError(HeadraceError):
    """There is no such page, or the ledger has no such thing."""


@dataclass(frozen=True, slots=True)
class Site:
    """Tools with which pages are made."""

    templates: Environment
    link: LedgerLink
    source_options: Mapping[str, str]

    def render(self, template: str, **values: Any) -> str:
        """The HTML of a region."""
        found = self.templates.get_template(f"regions/{template}")
        return found.render({"now_ms": wall_clock_ms(), **values})


@dataclass(frozen=True, slots=True)
class Page:
    """A page that stays live.

    Attributes:
        key: What distinguishes it from every other page.
        title: For the window, and the heading.
        template: The whole page; its live regions are in ``view``.
        look: Makes its regions.
        revision: Says whether there may be something new.
        about: What its template needs beside, as it is while the page is open.
        beside: Asks the ledger for what the template needs beside, once for each loading.
    """

    key: str
    title: str
    template: str
    look: Look
    revision: Revision
    about: Mapping[str, Any]
    beside: Callable[[Ledger], dict[str, Any]] | None = None


def refuse_a_long_name(name: str) -> None:
    """Refuse a name in an address that nothing has.

    Raises:
        NotFoundError: It is too long, or empty.
    """
    if not 0 < len(name) <= MOST_NAME:
        raise NotFoundError("There is no such page.")


def refuse_no_gate(ledger: Ledger, gate: str) -> GateRecord:
    """The row of a gate that an address names.

    Raises:
        NotFoundError: The ledger has no such gate.
    """
    found = ledger.gates.get(gate)
    if found is None:
        raise NotFoundError(f"The ledger has no gate {gate!r}; the overview lists those it has.")
    return found


def whole_number(text: str) -> int | None:
    """A number as a page or a form names it; None for anything else, or one that no row has."""
    is_number = text.isdecimal() and text.isascii() and len(text) < 20
    return int(text) if is_number and int(text) <= _HIGHEST_ID else None
