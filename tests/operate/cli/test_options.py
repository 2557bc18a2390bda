"""Meaning of options: moments, options of the source, and settings."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import typer
from tests.operate.cli.outcomes import Shop
from typer.testing import CliRunner

from headrace.errors import OptionError
from headrace.gate.kafka.kafka_source import KAFKA
from headrace.gate.ledger.ledger import Ledger
from headrace.journal.receivers.option import option
from headrace.operate.cli.receive import OptionValues, options_from
from headrace.operate.cli.shared_options import moment_ms, secret_of, source_options
from headrace.operate.status.sources import SourceAccess, source_access
from headrace.operate.status.words import full_time, short_time

NOW_MS = 1_732_197_600_500  # 2024-11-21T14:00:00.500Z


@pytest.fixture(params=["UTC", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of this machine."""
    name: str = request.param
    monkeypatch.setenv("TZ", name)
    time.tzset()
    yield name
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("2h", 7_200_000),
        ("2 hours ago", 7_200_000),
        (" 30 Minutes AGO ", 1_800_000),
        ("1 day 2 hours", 93_600_000),
        ("500 ms", 500),
        ("2024-11-21T14:00:00Z", 500),
        ("2024-11-21 15:00+01:00", 500),
        ("99999999999999999999 days ago", NOW_MS),
        ("1969-01-01T00:00Z", NOW_MS),
    ],
)
def test_a_moment_is_an_iso_time_or_how_long_ago_it_was(text: str, ago_ms: int) -> None:
    assert moment_ms("--since", text, NOW_MS) == NOW_MS - ago_ms


def test_a_time_without_a_zone_is_this_machines(zone: str) -> None:
    offset_ms = {"UTC": 0, "Asia/Kolkata": 19_800_000}[zone]
    assert moment_ms("--since", "2024-11-21 14:00", NOW_MS) == NOW_MS - 500 - offset_ms
    midnight_ms = moment_ms("--since", "2024-11-21", NOW_MS)
    assert midnight_ms == moment_ms("--since", "2024-11-21T00:00", NOW_MS)


@pytest.mark.parametrize(
    "text",
    ["", "ago", "2", "1732197600000", "yesterday", "2 weeks", "-2h", "2024-13-01", "2h later"],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"--until is .*; it must be a time such as") as refused:
        moment_ms("--until", text, NOW_MS)
    assert repr(text) in str(refused.value)


def test_moments_are_shown_in_the_zone_of_this_machine(zone: str) -> None:
    short, full = {
        "UTC": ("11-21 14:00:00", "2024-11-21 14:00:00.500+00:00"),
        "Asia/Kolkata": ("11-21 19:30:00", "2024-11-21 19:30:00.500+05:30"),
    }[zone]
    assert short_time(NOW_MS) == short
    assert full_time(NOW_MS, NOW_MS + 3_000) == f"{full} (3.00 s ago)"
    assert full_time(NOW_MS, NOW_MS - 3_000) == f"{full} (in 3.00 s)"
    assert short_time(None) == full_time(None, NOW_MS) == "—"


def test_what_is_given_by_itself_stands_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "options"
    file.write_text(
        "# how Kafka is reached\n\n"
        "kafka.security.protocol = SASL_SSL\n"
        '  kafka.sasl.jaas.config=a.Module required password="x=#1";\n'
        "kafka.client.id=file\n"
    )
    options = source_options(["KAFKA.client.id=given", "includeHeaders=true"], file)
    assert options == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": 'a.Module required password="x=#1";',
        "KAFKA.client.id": "given",
        "includeHeaders": "true",
    }
    assert source_options([], None) == {}


@pytest.mark.parametrize("text", ["hunter2", "=hunter2", " = "])
def test_what_is_no_option_is_refused_unseen(tmp_path: Path, text: str) -> None:
    file = tmp_path / "options"
    file.write_text(f"#\na=b\n{text}\n")
    with pytest.raises(OptionError, match=r"^--option is not NAME=VALUE") as by_itself:
        source_options([text], None)
    with pytest.raises(OptionError, match=r"^Line 3 of .*options is not NAME=VALUE") as in_file:
        source_options([], file)
    assert "hunter2" not in str(by_itself.value) + str(in_file.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"--options-file is .*missing, which cannot be read.*No such file"
    ):
        source_options([], tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(
        OptionError, match=r"--options-file is .*binary, which cannot be read.*not UTF-8"
    ):
        source_options([], tmp_path / "binary")


def test_the_brokers_are_those_that_the_ledger_has_unless_others_are_given(shop: Shop) -> None:
    with Ledger.open(shop.url) as ledger:
        both = {shop.failed: "orders", shop.left: "orders"}
        known = source_access(ledger, both, {"kafka.client.id": "me"})
        given = source_access(
            ledger, {shop.failed: "orders"}, {"Kafka.Bootstrap.Servers": "other:1"}
        )
    expected = {"kafka.client.id": "me", "kafka.bootstrap.servers": "localhost:9092"}
    assert known == dict.fromkeys(both, SourceAccess(KAFKA, expected))
    assert given == {shop.failed: SourceAccess(KAFKA, {"Kafka.Bootstrap.Servers": "other:1"})}


def test_options_are_a_streams(shop: Shop) -> None:
    stream = {"subscribePattern": "orders.*", "maxOffsetsPerTrigger": "7"}
    with Ledger.open(shop.url) as ledger:
        failed = {shop.failed: "orders"}
        assert source_access(ledger, failed, stream)[shop.failed].options.items() >= stream.items()
        with pytest.raises(OptionError, match="There is no option startingOffset "):
            source_access(ledger, failed, {"startingOffset": "latest"})
        with pytest.raises(OptionError, match=r"kafka\.bootstrap\.server is unknown"):
            source_access(ledger, failed, {"kafka.bootstrap.server": "x:1"})


@dataclass(frozen=True)
class Inner:
    """Settings within others.

    Attributes:
        most_per_s: At most so many (records/s). Default: None, no limit.
    """

    most_per_s: float | None = field(default=None, metadata=option("--most-per-s"))


@dataclass(frozen=True)
class Outer:
    """Settings.

    Attributes:
        names: Which ones, such as
            ``a``.
        key_file: Where the key is.
        hidden: Not for command lines.
        loud: Whether it is told. Default: on.
        quiet: Whether it is not. Default: off.
        size: How large it is; 1 or more. Default: 3. Too large, and it does not fit.
        inner: The others.
    """

    names: tuple[str, ...] = field(metadata=option("--name"))
    key_file: str = field(metadata=option("--tls-key"))
    hidden: str = "none"
    loud: bool = field(default=True, metadata=option("--loud/--no-loud"))
    quiet: bool = field(default=False, metadata=option("--quiet"))
    size: int = field(default=3, metadata=option("--size"))
    inner: Inner = field(default_factory=Inner)


@pytest.fixture
def made() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @options_from(Outer)
    def show(given: OptionValues, *, more: int = 0) -> None:
        typer.echo(json.dumps({**asdict(given.make(Outer, hidden="own")), "more": more}))

    return app


def test_settings_are_made_of_their_options_and_what_is_not_given_is_their_default(
    made: typer.Typer,
) -> None:
    needed = ["--name", "a", "--name", "b", "--tls-key", "k"]
    options = ["--no-loud", "--quiet", "--size", "7", "--most-per-s", "2.5", "--more", "1"]
    told = [
        json.loads(CliRunner().invoke(made, each).output) for each in (needed, needed + options)
    ]
    defaults = {"hidden": "own", "loud": True, "quiet": False, "size": 3}
    start = {"names": ["a", "b"], "key_file": "k"}
    assert told[0] == {**start, **defaults, "inner": {"most_per_s": None}, "more": 0}
    changed = {"hidden": "own", "loud": False, "quiet": True, "size": 7}
    assert told[1] == {**start, **changed, "inner": {"most_per_s": 2.5}, "more": 1}


def test_the_help_of_an_option_is_the_first_sentence_of_its_setting(made: typer.Typer) -> None:
    told = CliRunner(env={"COLUMNS": "200"}).invoke(made, ["--help"]).output
    for words in (
        "Which ones, such as 'a'.",
        "How large it is; 1 or more.",
        "so many (records/s).",
    ):
        assert words in told
    for words in ("hidden", "Too large", "--no-quiet", "Default"):
        assert words not in told
    assert CliRunner().invoke(made, ["--tls-key", "k"]).exit_code == 2


def test_a_secret_is_what_a_file_says_without_the_end_of_its_line_or_what_a_variable_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    assert secret_of(None, "--password-file", "A_PASSWORD") is None
    monkeypatch.setenv("A_PASSWORD", "hunter3")
    assert secret_of(None, "--password-file", "A_PASSWORD") == "hunter3"
    assert secret_of(file, "--password-file", "A_PASSWORD") == "hunter2"
