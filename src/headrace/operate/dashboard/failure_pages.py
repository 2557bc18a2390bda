"""Pages of failures, with their actions: groups of equal failures, a batch, a dead letter."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import escape

from headrace.gate import BatchRecord, DeadLetterRecord, DeadLetterStatus, Ledger, Status
from headrace.operate.dashboard.fleet import Fleet
from headrace.operate.dashboard.live import Revision, View
from headrace.operate.dashboard.pages import NotFoundError, Page, Query, Site, whole_number
from headrace.operate.status.actions import RetryQueue, is_queued

MOST_BYTES: Final = 20_000
"""A form can edit values up to this length (bytes). URL encoding may triple the length."""

_KEPT: Final = "\n\t"


def correctable(value: bytes | None) -> str | None:
    r"""Return the text of a value that a form can edit; None for any other value.

    A form can edit a value if it is UTF-8, is at most `MOST_BYTES` long, and has only printable
    characters, tabs and line ends. All its lines must end with LF, or all with CR LF, because a
    browser changes all line ends to one kind.

    >>> correctable(b'{"a": "12,50"}'), correctable(b"a\r\nb"), correctable(b"\xff")
    ('{"a": "12,50"}', 'a\nb', None)
    """
    if value is None or len(value) > MOST_BYTES:
        return None
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if _ends_with_crlf(text):
        text = text.replace("\r\n", "\n")
    is_shown = all(character.isprintable() or character in _KEPT for character in text)
    return text if is_shown else None


def corrected(before: bytes | None, text: str) -> bytes | None:
    r"""Encode a text that a form has sent, with the line ends of the value ``before``.

    Return None if ``before`` is not `correctable`.

    >>> corrected(b"a\nb", "a\r\nc"), corrected(b"a\r\nb", "a\r\nc")
    (b'a\nc', b'a\r\nc')
    """
    if before is None or correctable(before) is None:
        return None
    text = text.replace("\r\n", "\n")
    if _ends_with_crlf(before.decode("utf-8")):
        text = text.replace("\n", "\r\n")
    return text.encode("utf-8", "strict")


def _ends_with_crlf(text: str) -> bool:
    return 0 < text.count("\r\n") == text.count("\n")


GROUPS: Final = 100
"""A page shows at most this many groups of batches, and as many groups of dead letters."""

MOST_ALIKE: Final = 1_000
"""A form acts on at most this many batches or dead letters, the oldest first."""

ROWS: Final = 100
"""A group's page shows at most this many batches or dead letters, the oldest first."""

PARTS: Final = 200
"""A batch's page shows at most this many ranges, and at most this many dead letters."""


def failures_page(site: Site, _name: str, query: Query) -> Page:
    """Return the page of failures, grouped by reason.

    ``gate`` in ``query`` names a gate. Without it, the page has the failures of all gates.
    """
    gate = query.get("gate") or None
    skip = whole_number(query.get("skip", "")) or 0

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        batches = ledger.repairs.alike_batches(gate, GROUPS + 1, skip=skip)
        letters = ledger.repairs.alike_letters(gate, GROUPS + 1, skip=skip)
        values = {
            "values": ledger.dead_letters.values_of([letter.letter for letter in letters[:GROUPS]]),
            "batches": batches[:GROUPS],
            "letters": letters[:GROUPS],
            "gate": gate,
            "skipped": skip,
            "next": skip + GROUPS if max(len(batches), len(letters)) > GROUPS else None,
            "now_ms": now_ms,
        }
        return View({"groups": site.render("failure_groups.html", **values)})

    title = "Failures" if gate is None else f"Failures of {gate}"
    about = {"gate": gate, "all": "/failures"}
    return Page(f"/failures?{gate}&{skip}", title, look, _revision(gate), about)


def _revision(gate: str | None = None) -> Revision:
    """Return a function whose result changes when a page about ``gate`` may have changed.

    The result changes with each action of an operator and with each change of the gate. If ``gate``
    is None, the result changes with each change of each gate.
    """

    def revision(fleet: Fleet) -> object:
        return fleet.acted, fleet.revisions if gate is None else fleet.revisions.get(gate)

    return revision


def failed_alike(ledger: Ledger, gate: str, error: str) -> list[BatchRecord]:
    """Return a gate's batches that failed with a class of exception, the oldest first.

    An empty class selects the batches that failed without an exception.
    """
    batches = ledger.batches.unresolved(gate, MOST_ALIKE, error_class=error or None)
    own = (batch for batch in batches if error or batch.error is None)
    return [batch for batch in own if batch.status is Status.FAILED]


def letters_alike(ledger: Ledger, gate: str, error: str) -> list[DeadLetterRecord]:
    """Return a gate's waiting dead letters with a class of exception, the oldest first."""
    waiting = [DeadLetterStatus.WAITING]
    return list(
        ledger.dead_letters.oldest(gate, statuses=waiting, limit=MOST_ALIKE, error_class=error)
    )


def group_page(site: Site, _name: str, query: Query) -> Page:
    """Return the page of a group of equal failures.

    With ``what=letter`` in ``query``, they are dead letters; otherwise they are batches.
    """
    gate, error = query.get("gate", ""), query.get("error", "")
    kind = "letter" if query.get("what") == "letter" else "batch"
    begin = whole_number(query.get("after", "")) or 0

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        values = {"now_ms": now_ms, "most": ROWS, "gate": gate, "error": error}
        if kind == "batch":
            return _look_at_batches(site, ledger, begin, values)
        letters = ledger.dead_letters.oldest(
            gate,
            statuses=[DeadLetterStatus.WAITING],
            limit=ROWS + 1,
            after=begin,
            error_class=error,
        )
        messages = [letter.letter.error.message for letter in letters]
        return _alike(site, "group_letters.html", messages, values | {"rows": letters})

    def beside(ledger: Ledger) -> dict[str, Any]:
        if kind == "batch":
            failed = failed_alike(ledger, gate, error)
            return {"number": len(failed), "last": failed[-1].created_time_ms if failed else 0}
        letters = letters_alike(ledger, gate, error)
        return {"number": len(letters), "last": letters[-1].dead_letter_id if letters else 0}

    key, title = (
        f"/failures/alike?{kind}&{gate}&{error}&{begin}",
        f"{error or 'Failures'} in {gate}",
    )
    about = {"gate": gate, "error": error, "what": kind}
    return Page(key, title, look, _revision(gate), about, "group.html", beside)


def _look_at_batches(site: Site, ledger: Ledger, begin: int, values: Mapping[str, Any]) -> View:
    gate, error = values["gate"], values["error"]
    batches = ledger.batches.unresolved(
        gate, ROWS + 1, since_ms=begin or None, error_class=error or None
    )
    rows = [batch for batch in batches if error or batch.error is None]
    messages = [batch.error.message for batch in rows if batch.error is not None]
    queued = {batch.batch_key for batch in rows if is_queued(batch)}
    queue = RetryQueue.read(ledger, gate) if queued else None
    waits_for = queue.waits_for() if queue else None
    return _alike(
        site,
        "group_batches.html",
        messages,
        {**values, "rows": rows, "queued": queued, "waits_for": waits_for},
    )


def _alike(site: Site, template: str, messages: Sequence[str], values: Mapping[str, Any]) -> View:
    shown = {
        "queued": (),
        "waits_for": None,
        **values,
        "reason": messages[0] if messages else None,
        "differ": len(set(messages)) > 1,
    }
    why = site.render("group_why.html", **shown | {"queued": len(shown["queued"])})
    return View({"why": why, "group": site.render(template, **shown)})


def batch_page(site: Site, name: str, query: Query) -> Page:
    """Return the page of the batch whose key is ``name``.

    ``skip`` in ``query`` is the number of ranges and of dead letters that are left out.
    """
    skip = whole_number(query.get("skip", "")) or 0

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        batch = ledger.batches.get(name)
        if batch is None:
            raise NotFoundError(f"The ledger has no batch {name!r}.")
        values = _parts_of(ledger, name, skip) | {"batch": batch, "now_ms": now_ms}
        queue = RetryQueue.read(ledger, batch.gate) if is_queued(batch) else None
        values["waits_for"] = queue.waits_for(name) if queue else None
        why = site.render(
            "why.html",
            error=batch.error,
            after_commit=batch.status is Status.SUCCESS,
            retry_ms=batch.retry_ms,
            waits_for=values["waits_for"],
        )
        return View({"why": why, "batch": site.render("batch.html", **values)})

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
    key, title = f"/batch/{name}?{skip}", f"Batch {name[:8]}"
    return Page(key, title, look, _revision(), {"name": name}, "batch.html", beside)


def _parts_of(ledger: Ledger, key: str, skip: int) -> dict[str, Any]:
    ranges = ledger.batches.ranges(key)
    letters = ledger.repairs.letters_of(key, PARTS + 1, skip=skip)
    shown = slice(skip, skip + PARTS)
    has_more = max(len(ranges), skip + len(letters)) > skip + PARTS
    return {
        "ranges": ranges[shown],
        "letters": letters[:PARTS],
        "next": skip + PARTS if has_more else None,
        "losses": ledger.history.losses_of([key]),
        "rejected": ledger.dead_letters.count_rejected([key]),
    }


def letter_page(site: Site, name: str, _query: Query) -> Page:
    """Return the page of a dead letter: its bytes, its error, and its resolution."""
    number = whole_number(name)
    if number is None:
        raise NotFoundError(f"{name[:40]!r} is no number of a dead letter.")

    def look(ledger: Ledger, _fleet: Fleet, now_ms: int) -> View:
        record = ledger.dead_letters.get(number)
        if record is None:
            raise NotFoundError(f"The ledger has no dead letter {number}.")
        html = site.render("letter.html", record=record, letter=record.letter, now_ms=now_ms)
        error = record.letter.error
        why = site.render("why.html", error=error, after_commit=False, waits_for=None)
        return View({"why": why, "letter": html})

    def beside(ledger: Ledger) -> dict[str, Any]:
        record = ledger.dead_letters.get(number)
        waits = record is not None and record.status is DeadLetterStatus.WAITING
        text = correctable(record.letter.value) if record is not None else None
        # Escaped for HTML only: `visible` would put escapes into the value that the form sends.
        return {"record": record, "waits": waits, "text": None if text is None else escape(text)}

    key, title = f"/letter/{number}", f"Dead letter {number}"
    return Page(key, title, look, _revision(), {"number": number}, "letter.html", beside)
