"""Docstrings as the site shows them: doctests and what stands after ``::`` are blocks of code."""

import re
from typing import Any

import griffe


class CodeInDocstrings(griffe.Extension):
    """Makes Markdown of them; the site's tool would take a prompt for a quotation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of what was found in the source."""
        _ = kwargs
        if obj.docstring is not None:
            obj.docstring.value = in_markdown(obj.docstring.value)


def in_markdown(text: str) -> str:
    """The docstring with fences around its doctests, and without the marks of literal blocks."""
    text = re.sub(r" ?::$", "", text, flags=re.MULTILINE)
    return re.sub(r"^>>> (?:.+\n?)+", _fenced, text, flags=re.MULTILINE)


def _fenced(found: re.Match[str]) -> str:
    return f"```pycon\n{found[0].rstrip()}\n```\n"
