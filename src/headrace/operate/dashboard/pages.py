"""Common functions of pages: addresses, the template environment, values as HTML.

Records and names may contain markup or control characters, so every value is shown as text.
Templates replace each invisible character by an escape, and then escape the HTML. The content
security policy allows only the dashboard's own scripts and styles.
"""

import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from headrace.core.timing import wall_clock_ms
from headrace.errors import HeadraceError
from headrace.gate import LAST_MS, GateRecord, Ledger, without_secrets
from headrace.operate.dashboard.live import LedgerLink, Look, Revision
from headrace.operate.status import words
from headrace.operate.status.snapshot import ARROWS
from headrace.operate.status.states import Need, Where

Query = Mapping[str, str]
"""Query parameters of a page's address, by name. The last value of a repeated name counts."""

MOST_NAME: Final = 1_000
"""Largest length of a gate's name in a page's address (characters)."""

_FIRST_LINES: Final = """\
gate = headrace.Gate("orders", interval="1 second", ledger={ledger})
orders = gate.read(spark, "journal").load("journals/orders")
query = gate.write(orders, handler).option("checkpointLocation", "checkpoints/orders").start()
"""

_HIGHEST_ID: Final = 2**63 - 1


class NotFoundError(HeadraceError):
    """Error for a page that does not exist, or a gate, batch or dead letter not in the ledger."""


@dataclass(frozen=True, slots=True)
class Site:
    """Values with which pages are rendered: templates, link to the ledger, source options."""

    templates: Environment
    link: LedgerLink
    source_options: Mapping[str, str]

    @property
    def first_lines(self) -> str:
        """Lines of Python that create a gate in this ledger, as an example for a first visit."""
        return _FIRST_LINES.format(
            ledger=json.dumps(without_secrets(self.link.url), ensure_ascii=False)
        )

    def render(self, template: str, **values: Any) -> str:
        """Return the HTML of a region, rendered from a template with ``values``."""
        loaded = self.templates.get_template(f"regions/{template}")
        return loaded.render({"now_ms": wall_clock_ms(), **values})


@dataclass(frozen=True, slots=True)
class Page:
    """A live page: its address, its content, and the function that renders it.

    Attributes:
        key: Unique key of the page, by which viewers share it.
        title: Title of the window, and heading of the page.
        look: Renders the page's regions.
        revision: Returns a value that changes when the regions may have changed.
        about: Further values for the template, which are constant while the page is open.
        template: Template of the whole page. Its value ``view`` has the live regions.
        beside: Returns further values for the template from the ledger, at each load of the page;
            None if there are none.
    """

    key: str
    title: str
    look: Look
    revision: Revision
    about: Mapping[str, Any] = field(default_factory=dict)
    template: str = "list.html"
    beside: Callable[[Ledger], dict[str, Any]] | None = None


def address(page: str, **query: object) -> str:
    """Return the address of a page with its query; leave out values that are None.

    >>> address("/actions", gate="a b", before=None)
    '/actions?gate=a+b'
    """
    fields = {name: value for name, value in query.items() if value is not None}
    return f"{page}?{urlencode(fields, errors='backslashreplace')}" if fields else page


def refuse_a_long_name(name: str) -> None:
    """Raise NotFoundError if a name in a page's address is empty or longer than `MOST_NAME`."""
    if not 0 < len(name) <= MOST_NAME:
        raise NotFoundError("The dashboard has no page at this address.")


def refuse_no_gate(ledger: Ledger, gate: str) -> GateRecord:
    """Return the ledger's row of a gate; raise NotFoundError for an unknown gate."""
    record = ledger.gates.get(gate)
    if record is None:
        raise NotFoundError(
            f"The ledger has no gate {gate!r}; the overview lists the ledger's gates."
        )
    return record


def whole_number(text: str) -> int | None:
    """Parse a text as a whole number from 0 to 2^63 - 1; return None for any other text."""
    is_number = text.isdecimal() and text.isascii() and len(text) < 20
    return int(text) if is_number and int(text) <= _HIGHEST_ID else None


MOST_SHOWN: Final = 64 * 1024
"""Largest number of bytes of a record's key or value that a page shows."""

_TONES: Final = {
    "keeping up": "good",
    "finished": "good",
    "stopped": "watch",
    "catching up": "good",
    "steady": "watch",
    "falling behind": "watch",
    "interrupted": "watch",
    "paused": "watch",
    "stalled": "bad",
    "overdue": "bad",
    "isolating": "watch",
    "failed": "bad",
    "dead": "bad",
    "success": "good",
    "in_progress": "busy",
    "backfilling": "busy",
    "receiving": "good",
    "limited": "watch",
    "silent": "bad",
    "bottleneck": "bad",
    "throttled": "watch",
    "free": "good",
    "proven": "good",
    "open": "watch",
    "broken": "bad",
    "skipped": "bad",
    "waiting": "away",
    "sent": "good",
}
"""CSS class for the colour of each state and status. Pages always show the name too."""


_COMMAND: Final = re.compile("`([^`]+)`")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Replace each invisible character of a text by an escape.

    Invisible characters are NUL, other control characters, which terminals interpret, and marks
    that change the direction of writing. With ``lines``, line feeds and tabs are kept.

    >>> visible("a\x1b[31m\u202eb\x00")
    'a\\x1b[31m\\u202eb\\x00'
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        character
        if character.isprintable() or character in kept or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode("ascii")
        for character in text.encode("utf-8", "backslashreplace").decode("utf-8")
    )


def region_id(*names: str) -> str:
    """Return a region's HTML identifier, made from names that may contain any characters."""
    return "r" + sha256("\0".join(names).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def path(*parts: object) -> str:
    """Return a page's path, made from segments that may contain any characters.

    >>> path("gate", "a/b?c")
    '/gate/a%2Fb%3Fc'
    """
    return "/" + "/".join(
        quote(str(segment), safe="", errors="backslashreplace") for segment in parts
    )


def moment(ms: int | None) -> Markup:
    """Return the HTML of a time (ms since the epoch).

    The browser shows the time in its own time zone, or without scripts in UTC. None becomes a dash.
    """
    if ms is None:
        return escape(words.UNKNOWN)
    then = datetime.fromtimestamp(min(max(ms, 0), LAST_MS) / 1000, UTC)
    return Markup('<time datetime="{}" data-ms="{}">{}</time>').format(
        then.isoformat(timespec="milliseconds"), ms, f"{then:%Y-%m-%d %H:%M:%S} UTC"
    )


def ago(ms: int | None, now_ms: int) -> Markup:
    """Return the HTML of the time since ``ms``, which the browser updates; None becomes a dash."""
    if ms is None:
        return escape(words.UNKNOWN)
    return Markup('<time data-ago="{}">{}</time>').format(ms, words.duration(max(now_ms - ms, 0)))


def lines_of(text: str) -> Markup:
    """Return the HTML of a text with several lines for a ``pre`` element."""
    return escape(visible(text, lines=True))


def with_commands(text: str) -> Markup:
    """Return the HTML of a sentence, with text between backquotes as code.

    >>> str(with_commands("run `headrace why <x>`"))
    'run <code>headrace why &lt;x&gt;</code>'
    """
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(visible(text)))))  # noqa: S704


def sparkline(values: Sequence[float | None], label: str) -> Markup:
    """Return the HTML of a line chart of values, the oldest first.

    The chart reaches from 0 to the highest value; None counts as 0. ``label`` describes the chart.
    """
    numbers = [0.0 if value is None else float(value) for value in values]
    if len(numbers) < 2:
        return Markup("")
    highest, width, height = max(*numbers, 1.0), 96.0, 22.0
    step = width / (len(numbers) - 1)
    points = " ".join(
        f"{number * step:.1f},{height - 1 - value / highest * (height - 2):.1f}"
        for number, value in enumerate(numbers)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 96 22" preserveAspectRatio="none" role="img"'
        ' aria-label="{}"><polyline points="{}"/></svg>'
    ).format(label, points)


def bar(batch_ms: float | None, interval_ms: float | None) -> Markup:
    """Return the HTML of a bar for a batch's duration; the middle of the bar marks the interval.

    A duration above the interval fills the second half more and more slowly: twice the interval
    fills 75 % of the bar, and ten times the interval 95 %. From 1.5 times the interval on, the
    multiple is written beside the bar.
    """
    if batch_ms is None or not interval_ms:
        return Markup("")
    share = max(batch_ms / interval_ms, 0.0)
    filled = share * 50 if share <= 1 else 100 - 50 / share
    return Markup(
        '<span class="load"><svg class="bar {}" viewBox="0 0 100 8" preserveAspectRatio="none"'
        ' role="img" aria-label="{} of the interval"><rect class="track" width="100" height="8"/>'
        '<rect class="fill" width="{}" height="8"/><rect class="mark" x="49.4" width="1.2"'
        ' height="8"/></svg><small>{}</small></span>'
    ).format(
        "over" if share > 1 else "within",
        f"{share:.0%}",
        f"{filled:.1f}",
        Markup("{}&times;").format(f"{share:.0f}") if share >= 1.5 else "",
    )


def share_bar(shares: Sequence[tuple[str, float]], label: str) -> Markup:
    """Return the HTML of a bar of shares that add up to 1, each with its name as CSS class."""
    x, parts = 0.0, []
    for name, share in shares:
        width = max(min(share, 1.0), 0.0) * 100
        parts.append(
            Markup('<rect class="{}" x="{}" width="{}" height="8"/>').format(
                name, f"{x:.2f}", f"{width:.2f}"
            )
        )
        x += width
    return Markup(
        '<svg class="shares" viewBox="0 0 100 8" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>'
    ).format(label, Markup("").join(parts))


def bytes_shown(data: bytes | None) -> dict[str, str]:
    """Return the forms in which a page shows a record's bytes, by the name of the form.

    The forms are hex and base64, and JSON and text if the bytes are valid.
    """
    if data is None:
        return {}
    cut, forms = data[:MOST_SHOWN], dict[str, str]()
    try:
        text = cut.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    else:
        try:
            parsed = json.loads(data)
            if isinstance(parsed, dict | list):
                forms["JSON"] = json.dumps(parsed, indent=2, ensure_ascii=False)[:MOST_SHOWN]
        except (ValueError, RecursionError):
            pass
        forms["Text"] = text
    forms["Hex"] = "\n".join(
        f"{at:08x}  {cut[at : at + 16].hex(' '):<47}  "
        + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in cut[at : at + 16])
        for at in range(0, min(len(cut), 8192), 16)
    )
    forms["Base64"] = b64encode(cut[:8192]).decode("ascii")
    return forms


def decoded(data: bytes | None, most: int) -> str | None:
    """Return the first ``most`` bytes of a record as text; None if ``data`` is None."""
    return None if data is None else data[:most].decode("utf-8", "backslashreplace")


def tone(state: object) -> str:
    """Return the CSS class for a state's colour; ``plain`` for an unknown state."""
    return _TONES.get(str(state), "plain")


def need_link(need: Need) -> str:
    """Return the address of the page on which an operator acts on a need (problem)."""
    gate = f"?gate={path(need.about)[1:]}"
    match need.where:
        case Where.GATE:
            return path("gate", need.about)
        case Where.FAILURES | Where.VERIFY:
            return f"/{need.where}{gate}"
        case Where.RECEIVERS | Where.FLOWS:
            return f"/{need.where}"


def _finalize(value: Any) -> Any:
    """Return a template's value without invisible characters; a dash for None."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return visible(value)
    return words.UNKNOWN if value is None else value


def environment() -> Environment:
    """Return the Jinja environment of the pages' templates, with their filters and functions."""
    made = Environment(
        loader=PackageLoader("headrace.operate.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=words.count,
        signed=words.signed,
        duration=words.duration,
        fine_duration=words.fine_duration,
        size=words.size,
        lines=lines_of,
        commands=with_commands,
        tone=tone,
        decoded=decoded,
        spoken=words.spoken,
        drained_in=words.drained_in,
        arrow=lambda trend: ARROWS.get(trend, ""),
    )
    made.globals.update(
        plural=words.plural,
        path=path,
        need_link=need_link,
        moment=moment,
        ago=ago,
        sparkline=sparkline,
        bar=bar,
        share_bar=share_bar,
        bytes_shown=bytes_shown,
        region_id=region_id,
        status_word=words.status_word,
        records_of=words.planned_or_counted,
        unknown=words.UNKNOWN,
    )
    return made
