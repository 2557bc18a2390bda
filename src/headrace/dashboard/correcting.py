"""A dead letter's value in a form: which values a browser gives back as they were."""

from typing import Final

MOST_BYTES: Final = 20_000
"""The longest value that a form has; each byte may take three in what a browser sends."""

_KEPT: Final = "\n\t"


def correctable(value: bytes | None) -> str | None:
    r"""The text of a value that a form can have; None for any other value.

    It is UTF-8, not too long, and has no character that a browser changes or nobody sees. Lines end
    all with LF, or all with CR LF, for a browser makes them one.

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
    is_shown = all(each.isprintable() or each in _KEPT for each in text)
    return text if is_shown else None


def corrected(before: bytes | None, text: str) -> bytes | None:
    r"""The value that a form has sent, its lines as they ended before.

    None where the value before is not one that a form can have.

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
    """Whether there are lines, and each ends with CR LF."""
    return 0 < text.count("\r\n") == text.count("\n")
