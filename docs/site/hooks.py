"""What the site has besides the pages of ``docs``: those of the project's folder, and a reference.

The pages are written to be read in the repository, where their links lead from folder to folder.
"""

import importlib
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PACKAGES: Final = (
    "headrace",
    "headrace.errors",
    "headrace.flow",
    "headrace.journal",
    "headrace.journal.receivers",
    "headrace.journal.receivers.spark",
    "headrace.testing",
)
"""Those whose names users import."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the project's folder, the examples, and the reference."""
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    tasks = (ROOT / "docs/README.md").read_text()
    files.append(File.generated(config, "tasks.md", content=tasks))
    files.append(File.generated(config, "reference.md", content=reference()))
    for path in sorted(ROOT.glob("examples/*")):
        if path.is_file():
            files.append(File.generated(config, f"examples/{path.name}", content=path.read_bytes()))
    licence = (ROOT / "LICENSE").read_text()
    files.append(File.generated(config, "LICENSE.txt", content=licence))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the same pages on the site, where all are in one folder."""
    _ = page, config, files
    markdown = re.sub(r"\]\((?:\.\./|docs/)", "](", markdown)
    markdown = markdown.replace("](examples)", "](examples/two_gates.py)")
    return markdown.replace("](README.md", "](tasks.md")


def reference() -> str:
    """The page of every public name, for mkdocstrings."""
    lines = ["# Reference", "", "Every public name, by the package that you import it from.", ""]
    shown = set[str]()
    for package in PACKAGES:
        module = importlib.import_module(package)
        names = getattr(module, "__all__", None) or sorted(
            name for name, kind in vars(module).items() if isinstance(kind, type)
        )
        lines += [f"## {package}", ""]
        for name in names:
            home = str(getattr(getattr(module, name), "__module__", package))
            path = f"{home if home.startswith('headrace') else package}.{name}"
            if path not in shown:
                shown.add(path)
                lines += [f"::: {path}", ""]
    return "\n".join(lines)
