"""Lines of text for the terminal."""

from rich.text import Text


def line(text: str, style: str = "") -> Text:
    """One line, cut where it is too long; what a terminal would obey is not passed on to it."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def printable(text: str) -> str:
    """The text with a space for whatever a terminal would obey, line ends too."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
