"""A schema registry is asked by Confluent's client; what it cannot answer is an outage."""

import json
import pickle
import socket
import ssl
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import pytest
from tests.decoding.test_avro_format import ORDER, decoded, written
from tests.services.certificates import Authority
from tests.services.registry import RegistryServer, framed, registry_server

import headrace
from headrace.decoding import registry as registry_module
from headrace.errors import READ, OptionError, RegistryError, SetupError

PLAIN: Final = written(ORDER, {"id": 1, "name": None})[0]


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_WAIT_MS", 0)


@pytest.mark.parametrize("status", [302, 401, 403, 429, 500, 503])
def test_a_registry_that_refuses_is_an_outage_and_rejects_nothing(
    registry: RegistryServer, status: int
) -> None:
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    registry.status = status
    with pytest.raises(RegistryError, match=f"answers {status} to GET /schemas/ids/1") as raised:
        decoded(form, framed(1, PLAIN))
    assert raised.value.__notes__ == [READ]
    assert len(registry.asked) == (3 if status >= 429 else 1)
    registry.status = 200
    registry.register("orders-value", ORDER)
    assert decoded(form, framed(1, PLAIN)).reasons == {}


def test_a_registry_that_is_away_or_another_server_is_an_outage(registry: RegistryServer) -> None:
    for url, sentence in (
        ("http://127.0.0.1:1", "cannot be reached .*refused"),
        (f"{registry.url}/elsewhere", "answers 404 to GET /schemas/ids/1"),
    ):
        away = headrace.SchemaRegistry(url)
        with pytest.raises(RegistryError, match=sentence):
            decoded(headrace.avro(json.dumps(ORDER), registry=away), framed(1, PLAIN))


def test_a_registry_that_says_nothing_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        slow = headrace.SchemaRegistry(url, timeout_s=0.1)
        with pytest.raises(RegistryError, match=r"cannot be reached \(timed out\)"):
            decoded(headrace.avro(json.dumps(ORDER), registry=slow), framed(1, PLAIN))


@pytest.mark.parametrize("answer", [{}, {"schema": None}, {"schema": 7}, [], 7, None])
def test_an_answer_without_a_schema_is_an_outage_while_it_lasts(
    registry: RegistryServer, answer: Any
) -> None:
    number = registry.register("orders-value", ORDER)
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "answer", lambda _path: (200, answer))
        with pytest.raises(RegistryError, match="GET /schemas/ids/1") as raised:
            decoded(form, framed(number, PLAIN))
    assert raised.value.__notes__ == [READ]
    assert decoded(form, framed(number, PLAIN)).reasons == {}


def test_a_reference_that_the_registry_lacks_is_an_outage(registry: RegistryServer) -> None:
    number = registry.register("orders-value", ORDER, ("shop.Country", "country/a", 3))
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    sentence = "answers 404 to GET /schemas/ids/1, for a referenced schema"
    with pytest.raises(RegistryError, match=sentence):
        decoded(form, framed(number, PLAIN))


def test_the_next_url_of_a_registry_is_asked_where_one_is_away(registry: RegistryServer) -> None:
    number = registry.register("orders-value", ORDER)
    with registry_server() as broken:
        broken.status = 503
        urls = f"http://127.0.0.1:1,{broken.url}, {registry.url}"
        several = headrace.SchemaRegistry(urls)
        form = headrace.avro(json.dumps(ORDER), registry=several)
        assert decoded(form, framed(number, PLAIN)).reasons == {}
        assert (len(broken.asked), len(registry.asked)) == (3, 1)
        registry.status = 500
        with pytest.raises(RegistryError, match=r"^The schema registry http.*answers 500 to GET"):
            several.newest("orders-value")


@pytest.mark.parametrize(
    "secret", [{"user": "reader", "password": "hunter2"}, {"token": "hunter2"}]
)
def test_credentials_are_sent_and_shown_nowhere(
    registry: RegistryServer, secret: dict[str, str]
) -> None:
    if "token" in secret:
        registry.credentials = f"Bearer {secret['token']}"
    else:
        registry.require(**secret)
    number = registry.register("orders-value", ORDER)
    form = headrace.avro(json.dumps(ORDER), registry=registry.client(**secret))
    assert decoded(form, framed(number, PLAIN)).reasons == {}
    assert "hunter2" not in repr(form)
    for wrong, sentence in (("hunter3", "answers 401"), ("hunter4\n\u20ac", "schema registry")):
        client = registry.client(**{**secret, list(secret)[-1]: wrong})
        with pytest.raises(RegistryError, match=sentence) as raised:
            decoded(headrace.avro(json.dumps(ORDER), registry=client), framed(number, PLAIN))
        assert "hunter" not in "".join(traceback.format_exception(raised.value))


def test_a_token_that_is_no_header_is_not_shown(registry: RegistryServer) -> None:
    client = registry.client(token="hunter2\nx")  # noqa: S106
    with pytest.raises(RegistryError) as raised:
        client.newest("orders-value")
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_a_registry_behind_tls_is_trusted_by_its_authority(
    registry: RegistryServer, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("registry"))
    registry.socket = context.wrap_socket(registry.socket, server_side=True)
    registry.register("orders-value", ORDER)
    url = registry.url.replace("http", "https")
    trusted = headrace.SchemaRegistry(url, ca_file=authority.ca)
    assert trusted.newest("orders-value").kind == "AVRO"
    for other, sentence in (
        (headrace.SchemaRegistry(url), "cannot be reached .*CERTIFICATE_VERIFY_FAILED"),
        (headrace.SchemaRegistry(url, ca_file="/no/such.pem"), "cannot be reached .*No such file"),
    ):
        with pytest.raises(RegistryError, match=sentence):
            other.newest("orders-value")


def test_the_newest_schema_is_asked_for_each_time(registry: RegistryServer) -> None:
    client = registry.client()
    for text in ('"int"', '"long"'):
        registry.register("orders-value", text)
        assert client.newest("orders-value").text == text


@pytest.mark.integration
def test_what_asks_no_registry_does_not_import_its_client(registry: RegistryServer) -> None:
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    code = f"""if True:
        import pickle, sys
        form = pickle.loads({pickle.dumps(form)!r})
        form.decoder(form.columns())
        client = {{"attrs", "authlib", "confluent_kafka", "httpx", "httpx2"}}
        print(client & {{name.partition(".")[0] for name in sys.modules}})
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


@pytest.mark.parametrize("module", ["attrs", "authlib", "cachetools", "certifi"])
def test_a_client_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, registry: RegistryServer, module: str
) -> None:
    for name in list(sys.modules):
        if name.startswith(("confluent_kafka.schema_registry", f"{module}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    sentence = (
        r"^A schema registry needs the package confluent-kafka\[schemaregistry\], which is not"
        r" installed; run on every machine of the cluster: pip install 'headrace\[%s\]'\.$"
    )
    with pytest.raises(SetupError, match=sentence % "avro"):
        headrace.avro(json.dumps(ORDER), registry=registry.client())
    with pytest.raises(SetupError, match=sentence % "protobuf"):
        headrace.protobuf(b"", "shop.Order", registry=registry.client())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"url": "http://reader:hunter2@registry:8081"},
            "URL of registry contains a user or a password",
        ),
        ({"url": "registry:8081"}, "must be like http://host:8081"),
        ({"url": "ftp://registry"}, "must be like http://host:8081"),
        ({"url": "http://registry:99999"}, "'http://registry:99999'; it must be like"),
        ({"url": "http://registry:0"}, "with a port from 1 to 65535"),
        ({"url": "http://registry:abc"}, "with a port from 1 to 65535"),
        ({"url": "http://registry:8081 "}, "'http://registry:8081 '; it must be like"),
        ({"url": " http://registry:8081"}, "must be like"),
        ({"url": "http://registry:8081?a=b"}, "must be like"),
        ({"url": ""}, "URL is ''; it must be like"),
        ({"url": "http://a:8081,"}, "URL is ''; .* or several URLs separated by commas"),
        ({"url": "http://a:8081,,http://b:8081"}, "URL is ''"),
        ({"url": "http://a:8081,b:8081"}, "URL is 'b:8081'"),
        ({"url": "http://a:8081,http://reader:hunter2@[b"}, "contains a user or a password"),
        ({"user": "reader"}, "give a user and a password, or a token"),
        ({"user": "r", "password": "hunter2", "token": "hunter2"}, "or ambiguous"),
        ({"timeout_s": 0}, "timeout_s is 0; it must be above 0"),
    ],
)
def test_a_registry_that_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence) as raised:
        headrace.SchemaRegistry(**({"url": "http://registry:8081"} | options))
    assert "hunter2" not in str(raised.value)
