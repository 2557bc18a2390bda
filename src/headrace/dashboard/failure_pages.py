"""What has failed: groups of alike, a batch, a record; each with what can be done about it."""

from typing import Any, Final

from headrace.dashboard.fleet import Fleet
from headrace.dashboard.live import View
from headrace.dashboard.pages import NotFoundError, Page, Query, Site
from headrace.ledger import BatchRecord, DeadLetterRecord, DeadLetterStatus, Ledger, Status

GROUPS: Final = 200

MOST_ALIKE: Final = 1_000
"""Batches or records that one form acts on; the oldest first."""

ROWS: Final = 100
"""Batches or records on a page of a group; the oldest, for they are resolved first."""

CHILDREN: Final = 200
_HIGHEST_ID: Final = 2**63 - 1


def failures_page(site: Site, _name: str, query: Query) -> Page:
    """Groups of what failed for the same reason, of all gates or of ``gate``."""
    gate = query.get("gate") or None

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        batches = ledger.repairs.alike_batches(gate, GROUPS)
        letters = ledger.repairs.alike_letters(gate, GROUPS)
        values = {"batches": batches, "letters": letters, "gate": gate, "now_ms": now_ms}
        return View({"groups": site.render("failure_groups.html", **values)})

    return Page(
        key=f"/failures?{gate}",
        title="Failures" if gate is None else f"Failures of {gate}",
        template="failures.html",
        look=look,
        revision=lambda fleet: (_seen(fleet, gate), fleet.repaired),
        about={"gate": gate},
    )


def _seen(fleet: Fleet, gate: str | None) -> object:
    return fleet.revisions if gate is None else fleet.revisions.get(gate)


def failed_alike(ledger: Ledger, gate: str, error: str) -> list[BatchRecord]:
    """The batches of a gate that failed with this class of exception, the oldest first.

    Those without an exception, where it is empty.
    """
    found = ledger.batches.unresolved(gate, MOST_ALIKE, error_class=error or None)
    own = (each for each in found if error or each.error is None)
    return [each for each in own if each.status is Status.FAILED]


def letters_alike(ledger: Ledger, gate: str, error: str) -> list[DeadLetterRecord]:
    """The dead letters of a gate that wait with this class of exception, the oldest first."""
    waiting = [DeadLetterStatus.WAITING]
    return list(
        ledger.dead_letters.oldest(gate, statuses=waiting, limit=MOST_ALIKE, error_class=error)
    )


def group_page(site: Site, _name: str, query: Query) -> Page:
    """Batches (``what=batch``) or records (``what=letter``) that failed alike."""
    gate, error = query.get("gate", ""), query.get("error", "")
    what = "letter" if query.get("what") == "letter" else "batch"
    begin = whole_number(query.get("after", "")) or 0

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        values: dict[str, Any] = {"now_ms": now_ms, "most": ROWS, "gate": gate, "error": error}
        if what == "batch":
            found = ledger.batches.unresolved(
                gate, ROWS + 1, since_ms=begin or None, error_class=error or None
            )
            rows = [each for each in found if error or each.error is None]
            return View({"group": site.render("group_batches.html", rows=rows, **values)})
        letters = ledger.dead_letters.oldest(
            gate,
            statuses=[DeadLetterStatus.WAITING],
            limit=ROWS + 1,
            after=begin,
            error_class=error,
        )
        return View({"group": site.render("group_letters.html", rows=letters, **values)})

    def beside(ledger: Ledger) -> dict[str, Any]:
        """What a form on this page is about: how many there are now, and which is the last."""
        if what == "batch":
            failed = failed_alike(ledger, gate, error)
            return {"number": len(failed), "last": failed[-1].created_time_ms if failed else 0}
        letters = letters_alike(ledger, gate, error)
        return {"number": len(letters), "last": letters[-1].dead_letter_id if letters else 0}

    return Page(
        key=f"/failures/alike?{what}&{gate}&{error}&{begin}",
        title=f"{error or 'Failures'} in {gate}",
        template="group.html",
        look=look,
        revision=lambda fleet: (_seen(fleet, gate), fleet.repaired),
        about={"gate": gate, "error": error, "what": what},
        beside=beside,
    )


def whole_number(text: str) -> int | None:
    """A number as a page or a form names it; None for anything else, or one that no row has."""
    is_number = text.isdecimal() and text.isascii() and len(text) < 20
    return int(text) if is_number and int(text) <= _HIGHEST_ID else None


def batch_page(site: Site, name: str, _query: Query) -> Page:
    """Everything about one batch."""

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        batch = ledger.batches.get(name)
        if batch is None:
            raise NotFoundError(f"The ledger has no batch {name!r}.")
        children = ledger.batches.children(name)
        keys = [name, *(each.schedule_id for each in children)]
        values = {
            "batch": batch,
            "ranges": ledger.batches.ranges(name),
            "children": children[:CHILDREN],
            "more": len(children) - CHILDREN,
            "losses": ledger.history.losses_of(keys[: CHILDREN + 1]),
            "rejected": ledger.dead_letters.count_rejected(keys[: CHILDREN + 1]),
            "letters": ledger.repairs.letters_of(name, 50),
            "database_ms": ledger.database_time_ms(),
            "now_ms": now_ms,
        }
        return View({"batch": site.render("batch.html", **values)})

    def beside(ledger: Ledger) -> dict[str, Any]:
        batch = ledger.batches.get(name)
        can_drop = batch is not None and batch.status is Status.DEAD and batch.resolution is None
        return {
            "batch": batch,
            "can_retry": batch is not None and batch.status is Status.FAILED,
            "can_drop": can_drop,
        }

    if not (len(name) == 32 and set(name) <= set("0123456789abcdef")):
        raise NotFoundError(f"{name[:40]!r} is no key of a batch; it has 32 hexadecimal digits.")
    return Page(
        key=f"/batch/{name}",
        title=f"Batch {name[:8]}",
        template="batch.html",
        look=look,
        revision=lambda fleet: (fleet.revisions, fleet.repaired),
        about={"name": name},
        beside=beside,
    )


def letter_page(site: Site, name: str, _query: Query) -> Page:
    """One record that cannot be processed: its bytes, why, and what became of it."""
    number = whole_number(name)
    if number is None:
        raise NotFoundError(f"{name[:40]!r} is no number of a dead letter.")

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        record = ledger.dead_letters.get(number)
        if record is None:
            raise NotFoundError(f"The ledger has no dead letter {number}.")
        html = site.render("letter.html", record=record, letter=record.letter, now_ms=now_ms)
        return View({"letter": html})

    def beside(ledger: Ledger) -> dict[str, Any]:
        record = ledger.dead_letters.get(number)
        waits = record is not None and record.status is DeadLetterStatus.WAITING
        return {"record": record, "waits": waits}

    return Page(
        key=f"/letter/{number}",
        title=f"Dead letter {number}",
        template="letter.html",
        look=look,
        revision=lambda fleet: (fleet.revisions, fleet.repaired),
        about={"number": number},
        beside=beside,
    )
