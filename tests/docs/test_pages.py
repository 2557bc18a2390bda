"""The pages are true: links lead somewhere, options and commands exist, and lines are short."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka
import pytest
import typer
from bench.__main__ import BENCHMARKS
from tests.docs.pages import PAGES, ROOT, Snippet, blocks, code_spans, commands, prose, slug
from tests.services.lakes import DELTA

from headrace.gate.control import life
from headrace.gate.control.dead import DeadReason
from headrace.gate.execution.spark_session import RECOMMENDED_CONF
from headrace.gate.kafka.client.config import CONSUMER_OPTIONS, PRODUCER_OPTIONS
from headrace.gate.kafka.kafka_options import OPTIONS as KAFKA_OPTIONS
from headrace.journal.journal_options import OPTIONS as JOURNAL_OPTIONS
from headrace.operate.cli.app import app

MOST_COLUMNS: Final = 100
MOST_LINES: Final = 5

OF_OTHERS: Final = {
    *("--master", "--conf", "--archives", "--deploy-mode", "--files"),  # spark-submit
    *("--quick", "--pairs", "--postgresql"),  # make bench
    *("--upgrade", "--strict", "--help"),  # uv, mypy, everybody
    *("--data-binary", "--retry", "--retry-connrefused", "--retry-all-errors"),  # curl
    "--fail-with-body",  # curl
}
"""Options that pages name, and that are no command's of ours."""

OF_KAFKA_ONLY_IN_LIBRDKAFKA: Final = {
    "kafka.queued.max.messages.kbytes",
    "kafka.queue.buffering.max.kbytes",
}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def headings(text: str) -> list[str]:
    return [slug(found) for found in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]


def spans() -> Iterator[Snippet]:
    """Code in the sentences of pages; the changelog is history."""
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            yield from code_spans(page)


@every_page
def test_links_lead_to_files_and_headings_that_exist(page: Any) -> None:
    broken = []
    for paragraph in prose(page):
        for target in re.findall(r"\]\(([^)\s]+)\)", paragraph.text):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            file = page.parent / path if path else page
            if not file.exists() or (anchor and anchor not in headings(file.read_text())):
                broken.append(f"{paragraph}: {target}")
    assert broken == []


@every_page
def test_links_lead_to_what_they_name(page: Any) -> None:
    """To the page whose title the link's text is, and to the heading, where the page has it."""
    titles = {each.read_text().partition("\n")[0].lstrip("# "): each for each in PAGES}
    wrong = []
    for paragraph in prose(page):
        for text, target in re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", paragraph.text):
            name = " ".join(text.split())
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            is_other_page = file in PAGES and titles.get(name, file) != file
            is_other_heading = (
                file in PAGES
                and anchor not in ("", slug(name))
                and slug(name) in headings(file.read_text())[1:]
            )
            if is_other_page or is_other_heading:
                wrong.append(f"{paragraph}: {name}: {target}")
    assert wrong == []


@every_page
def test_rows_of_tables_have_as_many_cells_as_their_head(page: Any) -> None:
    torn, head, row_before = [], 0, -1
    for each in prose(page):
        if not each.text.startswith("|"):
            continue
        # A bar in a code span separates cells too, unless it is escaped.
        cells = each.text.replace(r"\|", "").count("|") - 1
        if each.line != row_before + 1:
            head = cells
        elif cells != head:
            torn.append(f"{each}: {cells} cells, and its head has {head}")
        row_before = each.line
    assert torn == []


@every_page
def test_lines_and_paragraphs_are_short(page: Any) -> None:
    if page.name == "CHANGELOG.md":
        return
    bad = []
    for each in prose(page):
        lines = each.text.splitlines()
        if not lines[0].startswith("|"):
            bad += [f"{each}: {line}" for line in lines if len(line) > MOST_COLUMNS]
        if len(lines) > MOST_LINES:
            bad.append(f"{each}: {len(lines)} lines")
    assert bad == []


def test_the_readme_fits_on_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_the_complete_programs_of_the_first_page_are_examples_which_tests_run() -> None:
    programs = {
        each.text
        for each in blocks(ROOT / "docs/getting-started.md", "python")
        if "main(" in each.text
    }
    names = ("send_orders", "orders_into_postgresql", "orders_into_delta")
    assert programs == {(ROOT / f"examples/{name}.py").read_text() for name in names}
    assert max(len(each.splitlines()) for each in programs) < 60


def test_the_pin_for_delta_lake_is_the_one_that_is_tested() -> None:
    spark = DELTA[0].name.removeprefix("delta-spark_").partition("_")[0]
    page = (ROOT / "docs/getting-started.md").read_text()
    assert f'"spark.jars.packages": "{DELTA[0]}"' in page
    assert f"'pyspark=={spark}.*'" in page


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert [name for name in sorted(pages) if f"]({name})" not in index] == []


def test_the_page_of_options_has_every_option_and_no_other() -> None:
    rows = re.findall(r"^\| `([\w.]+\.?[\w.]*)` \|", options_page(), re.MULTILINE)
    every = {*KAFKA_OPTIONS, "kafka.bootstrap.servers", *JOURNAL_OPTIONS, *RECOMMENDED_CONF}
    assert sorted(set(rows) - COLUMNS) == sorted(every)


COLUMNS: Final = {"topic", "partition", "offset", "timestamp", "timestampType", "headers"}
"""Rows of the same page that are no options."""


def test_the_page_of_failures_has_every_reason_why_a_batch_is_dead_and_no_other() -> None:
    page = (ROOT / "docs/failures.md").read_text()
    table = page.partition("| a batch is `dead` because |")[2].partition("\n\n")[0]
    reasons = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:]]
    assert reasons == list(DeadReason)


def options_page() -> str:
    return (ROOT / "docs/options.md").read_text()


def test_options_of_sources_that_pages_name_exist() -> None:
    known = {
        *KAFKA_OPTIONS,
        *JOURNAL_OPTIONS,
        *RECOMMENDED_CONF,
        *(f"kafka.{name}" for name in (*CONSUMER_OPTIONS, *PRODUCER_OPTIONS)),
        *OF_KAFKA_ONLY_IN_LIBRDKAFKA,
        "kafka.oauth.token",
    }
    form = re.compile(r"(kafka|backpressure|fetchOffset|kafkaConsumer|headrace)\.[\w.]*\w(?==|$)")
    unknown = []
    for span in spans():
        found = form.match(span.text)
        # `headrace.Gate` and `headrace.flow` are names of Python.
        if found and found[0] not in known and not is_python(found[0]):
            unknown.append(f"{span}: {span.text}")
    assert unknown == []


def is_python(name: str) -> bool:
    """Whether it names something in our package, or a logger, which has a module's name."""
    package, _, rest = name.partition(".")
    if package != "headrace":
        return False
    module = ROOT / "src" / "headrace" / rest.partition(".")[0]
    return module.is_dir() or module.with_suffix(".py").exists() or in_root(rest)


def in_root(rest: str) -> bool:
    import headrace

    return rest.partition(".")[0] in headrace.__all__


@pytest.mark.parametrize("name", sorted(OF_KAFKA_ONLY_IN_LIBRDKAFKA))
def test_librdkafka_has_the_options_that_pages_name_as_its_own(name: str) -> None:
    confluent_kafka.Producer({name.removeprefix("kafka."): 1_000, "log_level": 0})


def own_commands() -> dict[str, Any]:
    """Every command, by its words after ``headrace``."""
    found: dict[str, Any] = {}

    def add(words: tuple[str, ...], command: Any) -> None:
        found[" ".join(words)] = command
        for name in getattr(command, "commands", ()):
            add((*words, name), command.get_command(None, name))

    add((), typer.main.get_command(app))
    return found


OWN_COMMANDS: Final = own_commands()
FLAGS: Final = {
    flag
    for command in OWN_COMMANDS.values()
    for parameter in command.params
    for flag in (*parameter.opts, *parameter.secondary_opts)
}


def test_options_of_commands_that_pages_name_exist() -> None:
    unknown = [
        f"{span}: {flag}"
        for span in spans()
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span.text)
        if flag not in FLAGS | OF_OTHERS
    ]
    assert unknown == []


def test_commands_that_sentences_name_exist_and_have_the_options_named_with_them() -> None:
    wrong = []
    for span in spans():
        if not re.match(r"headrace [a-z]", span.text):
            continue
        words = shlex.split(span.text)[1:]
        name = [each for each in words if re.fullmatch(r"[a-z][a-z-]*", each)]
        while name and " ".join(name) not in OWN_COMMANDS:
            name.pop()
        flags = {each.partition("=")[0] for each in words if each.startswith("--")}
        command = OWN_COMMANDS[" ".join(name)]
        known = {flag for parameter in command.params for flag in parameter.opts}
        if not name or flags - known - {"--help", "--version"}:
            wrong.append(f"{span}: {span.text}")
    assert wrong == []


def make_commands() -> Iterator[Snippet]:
    for page in PAGES:
        for each in [c for b in blocks(page, "sh") for c in commands(b)] + list(code_spans(page)):
            if re.match(r"make [a-zA-Z]", each.text):
                yield each


TARGETS: Final = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_is_asked_for_what_it_can_make() -> None:
    """A target that exists, of tests and benchmarks that exist."""
    wrong = [
        f"{each}: {each.text}: {why}" for each in make_commands() if (why := fault_of(each.text))
    ]
    assert wrong == []


def fault_of(command: str) -> str | None:
    words = shlex.split(command)[1:]
    targets = [each for each in words if "=" not in each]
    if unknown := set(targets) - TARGETS:
        return f"no target {unknown}"
    arguments = next((each[5:] for each in words if each.startswith("ARGS=")), "").split()
    if targets == ["bench"]:
        names = {each for each in arguments if re.fullmatch(r"[a-z-]+", each) and each[0] != "-"}
        return f"no benchmark {names - set(BENCHMARKS)}" if names - set(BENCHMARKS) else None
    paths = [each for each in arguments if each.startswith("tests/")]
    if missing := [each for each in paths if not (ROOT / each).exists()]:
        return f"no such tests {missing}"
    if paths and (chosen := re.search(r'-k "?([^"]+)"?', " ".join(arguments))):
        folders = {(ROOT / each).parent for each in paths}
        text = "".join(file.read_text() for each in folders for file in each.glob("*.py"))
        words = [each for each in chosen[1].split() if each not in {"or", "and", "not"}]
        return next((f"no test named {each}" for each in words if each not in text), None)
    return None


def test_modules_that_pages_name_exist() -> None:
    places = (ROOT, ROOT / "src/headrace", ROOT / "bench")
    missing = [
        f"{span}: {span.text}"
        for span in spans()
        if re.fullmatch(r"[\w/.]+(\.py|/)", span.text) and "/" in span.text.strip("/")
        if not any((place / span.text).exists() for place in places)
    ]
    assert missing == []


def test_packages_are_installed_with_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    named = {
        (str(each), extra)
        for page in PAGES
        for each in [*(c for b in blocks(page, "sh") for c in commands(b)), *code_spans(page)]
        for found in re.findall(r"pip install '?(?:headrace|\.)\[([\w,-]+)\]", each.text)
        for extra in found.split(",")
    }
    assert named
    assert [each for each in named if each[1] not in extras] == []


def test_the_page_of_failures_has_the_phases_and_the_verdicts_of_the_code() -> None:
    page = (ROOT / "docs/failures.md").read_text()
    named = re.findall(r"^\| `([A-Z_]+)`[: ]", page, re.MULTILINE)
    phases = re.findall(r"^(WHOLE|HOLD|PARTS)  ", life.__doc__ or "", re.MULTILINE)
    assert sorted(named) == sorted([*(verdict.name for verdict in life.Verdict), *phases])
