"""Options of the source on the command line."""

from pathlib import Path

import pytest
from tests.cli.outcomes import Shop

from headrace.cli.options import SourceAccess, source_access, source_options
from headrace.errors import OptionError
from headrace.kafka.connector import KAFKA
from headrace.ledger import Ledger


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
    with pytest.raises(OptionError, match=r"missing of --options-file.*No such file"):
        source_options([], tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match=r"binary of --options-file.*not UTF-8"):
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
