"""``kafka.oauth.token``: a function's tokens let in, and what is wrong with it is one sentence."""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.docs.pages import ROOT, blocks
from tests.gate.kafka.reads import reader_config, rows, whole
from tests.services import clouds, tokens
from tests.services.kafka import Topics
from tests.services.waiting import wait_until

import headrace
from headrace.core.native import Engine
from headrace.errors import BrokerError, OptionError
from headrace.gate.kafka.client.config import client_config, producer_config
from headrace.gate.kafka.client.tokens import fetch_token, with_tokens
from headrace.gate.kafka.consumers import close_idle_consumers
from headrace.gate.kafka.range_reader import read_ranges
from headrace.operate.local import Java, KafkaBroker, kafka_server_jars
from headrace.operate.local.servers import HOST, free_ports

OURS = "tests.services.tokens"
SASL = {
    "bootstrap.servers": "localhost:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
}
LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def refusal(name: str, **options: str) -> str:
    with pytest.raises(OptionError) as refused:
        client_config({**SASL, "oauth.token": name, **options})
    message = str(refused.value)
    assert tokens.SECRET not in message
    assert refused.value.__cause__ is None
    assert message.endswith(".")
    return message


def test_the_name_goes_into_the_configuration_and_the_function_into_the_client() -> None:
    for config in (client_config, producer_config):
        made = config({**SASL, "oauth.token": f"{OURS}:unsecured"})
        assert made["oauth.token"] == f"{OURS}:unsecured"
        settings = with_tokens(made)
        assert "oauth.token" not in settings
        token, expiry_s, principal, extensions = settings["oauth_cb"]("")
        assert token.endswith(".")
        assert expiry_s > time.time()
        assert (principal, extensions) == ("app", {})


def test_a_client_without_the_option_is_as_it_was() -> None:
    config = {"bootstrap.servers": "a:1"}
    assert with_tokens(config) == config


def test_the_first_token_is_used_and_each_refresh_calls_again() -> None:
    before = tokens.calls
    refresh = with_tokens({"oauth.token": f"{OURS}:unsecured"})["oauth_cb"]
    assert tokens.calls == before + 1
    refresh("")
    assert tokens.calls == before + 1
    refresh("")
    assert tokens.calls == before + 2


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("raises", "raised RuntimeError, whose text is not shown"),
        ("in_milliseconds", "returned an expiry that is years away, as one in milliseconds is"),
        ("expired", "returned an expiry that is past"),
        ("text_expiry", "returned an expiry that is a str, and no number"),
        ("alone", "returned a str that is no tuple of three"),
        ("two", "returned a tuple that is no tuple of three"),
        ("in_bytes", "returned a token that is no text"),
        ("spaced", "returned a token that is no text"),
        ("nobodys", "returned no principal"),
        ("needs_argument", "needs arguments"),
        ("SECRET", "tests.services.tokens has no function SECRET"),
        ("missing", "tests.services.tokens has no function missing"),
    ],
)
def test_a_function_that_is_wrong_is_one_sentence(function: str, what: str) -> None:
    message = refusal(f"{OURS}:{function}")
    assert what in message
    assert f"{OURS}:{function}" in message


@pytest.mark.parametrize(
    "name", ["hunter2", "eyJhbGciOiJub25lIn0.hunter2.", ":", "a:", ":b", "a b:c", "a:b:c", "a:b()"]
)
def test_what_is_no_name_is_not_shown(name: str) -> None:
    assert refusal(name).startswith("kafka.oauth.token (its value is not shown")
    assert name not in refusal(name) or name in ":a:b"


def test_a_module_that_lacks_another_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking.py").write_text("import nowhere.signer\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = refusal("lacking:token")
    assert "importing lacking raised ModuleNotFoundError, because nowhere is not" in said


def test_a_module_that_cannot_be_imported_says_where_it_must_be() -> None:
    assert (
        "importing nowhere.tokens raised ModuleNotFoundError; make nowhere.tokens importable"
        in (refusal("nowhere.tokens:token"))
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"security.protocol": "SSL"}, "needs kafka.security.protocol=SASL_SSL"),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "a.PlainLoginModule required username='u' password='hunter2';",
            },
            "kafka.sasl.mechanism=OAUTHBEARER",
        ),
        ({"sasl.oauthbearer.client.id": "app"}, "kafka.sasl.oauthbearer.client.id are both given"),
        (
            {"sasl.jaas.config": f"{LOGIN_MODULE} required clientId='a' clientSecret='hunter2';"},
            "kafka.sasl.jaas.config, with options, are both given",
        ),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(options: dict[str, str], what: str) -> None:
    assert what in refusal(f"{OURS}:unsecured", **options)


def test_a_login_module_without_options_goes_with_it() -> None:
    client_config(
        {
            **SASL,
            "oauth.token": f"{OURS}:unsecured",
            "sasl.jaas.config": f"{LOGIN_MODULE} required;",
        }
    )


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.mechanism": "AWS_MSK_IAM"},
        {"sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;"},
        {
            "sasl.login.callback.handler.class": (
                "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"
            )
        },
        {
            "sasl.client.callback.handler.class": (
                "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
            )
        },
    ],
)
def test_classes_of_clouds_are_answered_with_this_option(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"kafka\.oauth\.token=MODULE:FUNCTION"):
        client_config({**SASL, **options})


def test_a_function_that_raises_later_is_a_broker_error_and_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokerError, match="raised RuntimeError"):
        fetch_token(f"{OURS}:raises")
    refresh = with_tokens({"oauth.token": f"{OURS}:unsecured"})["oauth_cb"]
    refresh("")
    monkeypatch.setattr(tokens, "unsecured", tokens.raises)
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerError):
        refresh("")
    assert "raised RuntimeError" in caplog.text
    assert tokens.SECRET not in caplog.text


RECIPES = [
    snippet
    for snippet in blocks(ROOT / "docs/kafka-client-options.md", "python")
    if "def token()" in snippet.text
]


@pytest.mark.parametrize("recipe", RECIPES, ids=["aws", "google", "azure"])
def test_the_recipes_of_the_page_return_what_is_wanted(
    recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("recipe")
    with clouds.stubbed():
        exec(recipe.text, module.__dict__)  # noqa: S102
        monkeypatch.setitem(sys.modules, "recipe", module)
        token, expiry_s, principal, _ = fetch_token("recipe:token")
    assert abs(expiry_s - time.time() - clouds.LIFE_S) < 60
    assert token
    assert principal


@pytest.fixture(scope="module")
def servers(java: Java) -> Iterator[Mapping[str, str]]:
    """One broker with a listener for tokens without a signature, and another without any."""
    plain, controller, signed = free_ports(3)
    addresses = {"PLAINTEXT": f"{HOST}:{plain}", "TOKENS": f"{HOST}:{signed}"}
    advertised = ",".join(f"{name}://{address}" for name, address in addresses.items())
    settings = {
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"{advertised},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": advertised,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "TOKENS:SASL_PLAINTEXT",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config": f"{LOGIN_MODULE} required"
        ' unsecuredLoginStringClaim_sub="broker";',
    }
    broker = KafkaBroker(java, kafka_server_jars(java), settings=settings)
    broker.bootstrap_servers = addresses["PLAINTEXT"]
    with broker:
        yield addresses
        close_idle_consumers()


def access(servers: Mapping[str, str], function: str) -> dict[str, str]:
    names = {**SASL, "bootstrap.servers": servers["TOKENS"], "oauth.token": f"{OURS}:{function}"}
    return {f"kafka.{name}": value for name, value in names.items()}


@pytest.mark.nightly
def test_all_records_are_read_with_tokens(
    spark: SparkSession, servers: Mapping[str, str], tmp_path: Path
) -> None:
    headrace.register(spark)
    orders = Topics(servers["PLAINTEXT"]).create(3)
    for partition in range(3):
        orders.produce(*[b"%d" % number for number in range(100)], partition=partition)
    options = {**access(servers, "unsecured"), "subscribe": orders.name}
    options["startingOffsets"] = "earliest"
    read = spark.read.format("headrace-kafka").options(**options).load()
    assert read.count() == 300
    stream = spark.readStream.format("headrace-kafka").options(**options).load()
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 300
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert not any("eyJ" in text for text in written)
    sink = spark.createDataFrame([("one",)], "value string").write.format("headrace-kafka")
    sink.options(**access(servers, "unsecured"), topic=orders.name).mode("append").save()
    read = spark.read.format("headrace-kafka").options(**options).load()
    assert read.count() == 301


@pytest.mark.nightly
def test_a_wrong_function_is_an_error_before_the_query_starts(
    spark: SparkSession, servers: Mapping[str, str]
) -> None:
    headrace.register(spark)
    reader = spark.read.format("headrace-kafka").option("subscribe", "orders")
    with pytest.raises(Exception, match="returned a str that is no tuple of three") as raised:
        reader.options(**access(servers, "alone")).load().count()
    assert tokens.SECRET not in str(raised.value)


@pytest.mark.nightly
def test_a_token_is_renewed_before_it_expires(servers: Mapping[str, str], engine: Engine) -> None:
    orders = Topics(servers["PLAINTEXT"]).create(prefix=f"renewed-{engine}")
    orders.produce(b"before")
    names = {**SASL, "bootstrap.servers": servers["TOKENS"], "group.id": "renewed"}
    client = {**names, "oauth.token": f"{OURS}:short_lived"}
    # A question about the silence would need another consumer, with tokens of its own.
    config = replace(reader_config("", columns=["value"]), client=client, silence_s=1000.0)
    before = tokens.calls

    def produce_after_renewals() -> None:
        wait_until(lambda: tokens.calls > before + 2)
        orders.produce(b"after")

    with ThreadPoolExecutor(1) as pool:
        produced = pool.submit(produce_after_renewals)
        found = rows(read_ranges(config, [whole(orders, 2)]))
        produced.result()
    assert found == [{"value": b"before"}, {"value": b"after"}]
