"""Every command in a block of a page runs as it stands, in the order of its block.

It runs in a folder like the one that the pages speak of (`Shop`): with a ledger, a checkpoint,
journals, a handler and flows. Values that a page cannot know, such as a key or a broker's address,
are put in their places.
"""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession
from tests.docs.conftest import Shop
from tests.docs.pages import PAGES, Snippet, blocks, commands
from tests.journal.receivers.processes import ReceiverProcess
from tests.operate.cli.commands import in_a_terminal, press_ctrl_c
from tests.operate.cli.outcomes import invoke
from tests.services.certificates import Authority
from tests.services.debian import program
from tests.services.mosquitto import Mosquitto
from tests.services.waiting import wait_until

pytestmark = pytest.mark.nightly

NOT_RUN: Final = {
    "make": "runs these tests, or benchmarks; test_pages checks its targets and arguments",
    ".venv/bin/pytest": "runs these tests",
    "pip": "downloads packages; test_pages checks the extras",
    "python3.11": "packs the reader's environment, from the package index",
    "env/bin/pip": "the same",
    "env/bin/venv-pack": "the same",
    "export": "is for the spark-submit after it",
    "spark-submit": "needs a cluster, and the reader's job.py",
    "keytool": "is Java's, for the reader's own stores",
}
"""Programs that are not run, and why. Any other program is run, or the test fails."""

IN_PLACE: Final[dict[str, Callable[[Shop], str]]] = {
    r"\blocalhost:9092\b": lambda shop: shop.topic.bootstrap_servers,
    r"\bpostgresql://headrace@db/headrace\b": lambda shop: shop.ledger,
    r"(?<=\s)/data/orders\b": lambda _: "journals/orders",
    r"(?<=headrace drop )KEY\b": lambda shop: shop.dead,
    r"\bKEY\b": lambda shop: shop.failed,
    r"(?<=dead-letters send )ID\b": lambda _: "1",
    r"(?<=dead-letters drop )ID\b": lambda _: "2",
}
"""Replacements for values that a page cannot know."""

STATUSES: Final = {"failures": {0, 3}, "verify": {0, 3}}
"""Exit statuses that are no error, besides 0."""

BLOCKS: Final = [each for page in PAGES for each in blocks(page, "sh", "crontab")]


def program_of(command: str) -> str:
    """The program that a command runs, without variables before it."""
    return next(each for each in shlex.split(command) if not re.match(r"\w+=", each))


def runs(block: Snippet) -> bool:
    return any(program_of(each.text) not in NOT_RUN for each in commands_of(block))


def commands_of(block: Snippet) -> Iterator[Snippet]:
    """The commands of a block; of a line of cron, what stands behind the time."""
    for each in commands(block):
        text = each.text.split(maxsplit=5)[5] if block.language == "crontab" else each.text
        for part in text.split(" && "):
            yield Snippet(each.page, each.line, part)


class Terminal:
    """Runs the commands of one block."""

    def __init__(self, shop: Shop, cleanup: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self._shop = shop
        self._patch = patch
        self._cleanup = cleanup
        self._receivers: list[ReceiverProcess] = []

    def type(self, command: Snippet) -> None:
        text = command.text
        for pattern, put in IN_PLACE.items():
            text = re.sub(pattern, put(self._shop), text)
        words = shlex.split(text)
        match words[0], words[1:]:
            case "headrace", ["demo"]:
                pass  # tests/test_install.py runs it, from the package
            case "headrace", ["receive", *arguments] if arguments[0] in ("http", "tcp", "mqtt"):
                self._receive(arguments)
            case "headrace", arguments if "--watch" in arguments or arguments[:2] == [
                "flow",
                "run",
            ]:
                self._run_until_ctrl_c(arguments)
            case "headrace", ["dashboard", *_]:
                self._run_until_ctrl_c([*words[1:], "--port", "0"])
            case "headrace", ["backfill", *_] if "--dry-run" not in words:
                self._backfill(words[1:])
            case "headrace", arguments:
                self._run_here(arguments)
            case "curl", arguments:
                self._send(arguments)
            case program, _:
                assert program in NOT_RUN, f"{command}: nothing here runs {program}"

    def close(self) -> None:
        """End what still receives."""
        for each in self._receivers:
            each.send(signal.SIGINT)
            assert each.ended() == 0, each.errors

    def _run_here(self, arguments: list[str]) -> None:
        target = None
        if ">" in arguments:
            *arguments, _, target = arguments
        result = invoke(self._shop.ledger, *arguments)
        assert result.exit_code in STATUSES.get(arguments[0], {0}), result.output
        assert result.output
        if target is not None:
            Path(target).write_text(result.stdout)

    def _backfill(self, arguments: list[str]) -> None:
        """In the Spark of this process, which the command would stop at its end."""
        if "--flow" in arguments:
            self._shop.defer_in_flow()
        with self._patch.context() as patch:
            patch.setattr(SparkSession, "stop", lambda _session: None)
            self._run_here(arguments)

    def _run_until_ctrl_c(self, arguments: list[str]) -> None:
        folder = self._shop.folder
        shown = folder / "stdout"
        with in_a_terminal(*arguments, folder=folder, variables=SPARK) as running:
            wait_until(lambda: shown.read_text() or running.poll() is not None, timeout_s=180)
            assert shown.read_text(), (folder / "stderr").read_text()
            press_ctrl_c(running)
            expected = 130 if arguments[0] == "status" else 0
            assert running.wait(60) == expected, (folder / "stderr").read_text()

    def _receive(self, arguments: list[str]) -> None:
        if arguments[0] == "mqtt":
            broker = Mosquitto(self._shop.folder)
            self._cleanup.enter_context(broker)
            arguments[arguments.index("--url") + 1] = broker.url
        else:
            arguments += ["--port", "0"]
        if "--tls-certificate" in arguments:
            Authority(self._shop.folder).issue("server")
            (self._shop.folder / "tokens").write_text("till s3cret\n")
        receiver = ReceiverProcess(self._shop.folder, arguments, {})
        self._cleanup.callback(receiver.process.wait)
        self._cleanup.callback(receiver.process.kill)
        receiver.wait_for("receiving")
        self._receivers.append(receiver)

    def _send(self, arguments: list[str]) -> None:
        """By the real curl, to where the receiver really is."""
        host, port = self._receivers[-1].address
        *others, url = arguments
        place = f"http://{host}:{port}{urlsplit(url).path}"
        curl = program("curl")
        sent = [curl.path, "--silent", "--show-error", "--fail", *others, place]
        done = subprocess.run(
            [each for each in sent if each != "--fail-with-body"],
            cwd=self._shop.folder,
            env=curl.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert '"until"' in done.stdout


SPARK: Final = {
    "PYSPARK_SUBMIT_ARGS": "--conf spark.master=local[2] --conf spark.ui.enabled=false"
    " --conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1"
    " --conf spark.sql.shuffle.partitions=2 pyspark-shell",
    "HEADRACE_LEDGER": "sqlite:///headrace.db",
}


@pytest.mark.parametrize("block", [each for each in BLOCKS if runs(each)], ids=str)
def test_the_commands_of_a_block_run(
    block: Snippet, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SPARK.keys() & os.environ.keys():
        monkeypatch.delenv(name)
    with ExitStack() as cleanup:
        terminal = Terminal(shop, cleanup, monkeypatch)
        for command in commands_of(block):
            try:
                terminal.type(command)
            except AssertionError as error:
                raise AssertionError(f"{command}: `{command.text}`: {error}") from error
        terminal.close()


def test_what_is_not_run_is_on_a_page() -> None:
    named = {program_of(each.text) for block in BLOCKS for each in commands_of(block)}
    assert NOT_RUN.keys() <= named
