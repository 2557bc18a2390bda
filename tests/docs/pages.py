"""The pages, and what they print: prose, blocks of code, and commands with their lines."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_CODE_SPAN: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Snippet:
    """A piece of a page: a block of code, a command, or a paragraph.

    Attributes:
        page: The page.
        line: Its first line; from 1.
        text: The text that is printed.
        language: The language of a block of code; empty for prose, and where none is named.
    """

    page: Path
    line: int
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> Iterator[Snippet]:
    """The fenced blocks of these languages, or all of them."""
    language, first, lines = None, 0, list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if language is None:
                language, first, lines = line[3:], number + 1, []
            else:
                if not languages or language in languages:
                    yield Snippet(page, first, "".join(f"{each}\n" for each in lines), language)
                language = None
        elif language is not None:
            lines.append(line)


def prose(page: Path) -> Iterator[Snippet]:
    """Paragraphs, items of lists, rows of tables and headings; no blocks of code."""
    in_code, first, lines = False, 0, list[str]()
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        ends = line.startswith("```") or not line.strip() or in_code
        begins = bool(re.match(r"\s*([-*]|\d+\.) |\||#", line))
        if lines and (ends or begins):
            yield Snippet(page, first, "\n".join(lines))
            lines = []
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and line.strip():
            first = first if lines else number
            lines.append(line)


def code_spans(page: Path) -> Iterator[Snippet]:
    """Yield the texts between backticks in prose, without line breaks."""
    for paragraph in prose(page):
        for found in _CODE_SPAN.finditer(paragraph.text):
            line = paragraph.line + paragraph.text[: found.start()].count("\n")
            yield Snippet(page, line, " ".join(found[1].split()))


def commands(block: Snippet) -> Iterator[Snippet]:
    """The commands of a block, without comments; one that is continued is one."""
    begun, text = block.line, ""
    for number, line in enumerate(block.text.splitlines(), block.line):
        begun = begun if text else number
        text += line.strip().removesuffix("\\")
        if line.endswith("\\"):
            continue
        words = shlex.split(text, comments=True)
        if words:
            yield Snippet(block.page, begun, without_comment(text), block.language)
        text = ""


def without_comment(text: str) -> str:
    """A command up to its comment, quotes as they stand."""
    found = re.match(r"""(?:'[^']*'|"[^"]*"|(?<!\s)\#|[^#'"])*""", text)
    return (found[0] if found else text).strip()


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    text = heading.replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
