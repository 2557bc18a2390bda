"""SASL, from Java's login configuration to librdkafka's options."""

from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st
from tests.kafka.test_jaas import quoted

from headrace.errors import OptionError
from headrace.kafka.client_config import client_config
from headrace.kafka.client_sasl import sasl_config

SERVERS = {"bootstrap.servers": "kafka:9092", "security.protocol": "SASL_PLAINTEXT"}
MODULES = "org.apache.kafka.common.security"
PLAIN = f"{MODULES}.plain.PlainLoginModule required"
SCRAM = f"{MODULES}.scram.ScramLoginModule required"
OAUTH = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required"
TOKENS = "https://login.example.com/token"


def sasl(options: Mapping[str, str]) -> dict[str, object]:
    """What client_config makes of these, of SASL alone; librdkafka makes a client of it."""
    config = client_config({**SERVERS, **options})
    Consumer({**config, "group.id": "x", "bootstrap.servers": ""}).close()
    return {name: value for name, value in config.items() if name.startswith("sasl.")}


def refusal(options: Mapping[str, str]) -> str:
    with pytest.raises(OptionError) as refused:
        client_config({**SERVERS, **options})
    assert "hunter2" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM), ("PLAIN", SCRAM)],
)
@given(
    # librdkafka takes both as C strings.
    username=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    password=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
)
def test_name_and_password_come_from_the_login_module(
    mechanism: str, module: str, username: str, password: str
) -> None:
    jaas = f"{module} username={quoted(username)} password={quoted(password)};"
    assert sasl({"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}) == {
        "sasl.mechanism": mechanism,
        "sasl.username": username,
        "sasl.password": password,
    }


def test_name_and_password_may_be_given_in_librdkafkas_options() -> None:
    given = {"sasl.mechanism": "PLAIN", "sasl.username": "app", "sasl.password": "hunter2"}
    assert sasl(given) == given


def test_without_a_protocol_that_has_it_sasl_is_not_looked_at() -> None:
    options = {**SERVERS, "security.protocol": "PLAINTEXT", "sasl.mechanism": "PLAIN"}
    assert "sasl.mechanism" not in client_config({**options, "sasl.jaas.config": "?"})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"sasl.mechanism": "PLAIN"}, "gives no username and password"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{PLAIN} password=hunter2;"},
            "gives no username and password",
        ),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "hunter2"}, "the word required"),
        ({"sasl.jaas.config": f"{PLAIN} password=hunter2;"}, "GSSAPI where none is given"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{KERBEROS} keyTab=hunter2;"},
            "PlainLoginModule or ScramLoginModule",
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f"{SCRAM} username=u password=hunter2 tokenauth='true';",
            },
            "no delegation tokens",
        ),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "hunter2",
                "sasl.jaas.config": f"{PLAIN} username=u password=hunter2;",
            },
            "kafka.sasl.username and kafka.sasl.jaas.config are both given",
        ),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl.client.callback.handler.class": "a.B"}, "SCRAM-SHA-512"),
        ({"sasl.login.class": "a.B"}, "kafka.sasl.mechanism"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.login.callback.handler.class": "a.B"},
            "no Java; leave it out",
        ),
    ],
)
def test_a_login_that_cannot_be_kept_is_refused(options: dict[str, str], what: str) -> None:
    assert what in refusal(options)


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.jaas.config": f'{OAUTH} clientId="app" clientSecret="hunter2" scope="kafka";'},
        {
            "sasl.jaas.config": f"{OAUTH};",
            "sasl.oauthbearer.client.credentials.client.id": "app",
            "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.jwt.retriever.class": "a.b.ClientCredentialsJwtRetriever",
        },
        {
            "sasl.jaas.config": f"{OAUTH} clientId=app clientSecret=hunter2 scope=kafka;",
            "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.secured"
            ".OAuthBearerLoginCallbackHandler",
        },
    ],
)
def test_tokens_are_fetched_by_librdkafka(given: dict[str, str]) -> None:
    options = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": TOKENS}
    assert sasl({**options, **given}) == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": TOKENS,
        "sasl.oauthbearer.client.id": "app",
        "sasl.oauthbearer.client.secret": "hunter2",
        "sasl.oauthbearer.scope": "kafka",
    }


def test_extensions_of_a_token_are_kept() -> None:
    jaas = f"{OAUTH} clientId=a clientSecret=b extension_cluster='lkc-1' extension_pool='p-2';"
    config = sasl(
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": TOKENS,
            "sasl.jaas.config": jaas,
        }
    )
    assert config["sasl.oauthbearer.extensions"] == "cluster=lkc-1,pool=p-2"


def test_a_token_is_asked_for_with_a_signed_assertion() -> None:
    config = sasl(
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": TOKENS,
            "sasl.oauthbearer.jwt.retriever.class": f"{MODULES}.oauthbearer.JwtBearerJwtRetriever",
            "sasl.oauthbearer.assertion.private.key.file": "/etc/key.pem",
            "sasl.oauthbearer.assertion.claim.sub": "app",
            "sasl.oauthbearer.assertion.template.file": "/etc/claims.json",
        }
    )
    prefix = "sasl.oauthbearer"
    assert config[f"{prefix}.grant.type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert config[f"{prefix}.assertion.private.key.file"] == "/etc/key.pem"
    assert config[f"{prefix}.assertion.claim.sub"] == "app"
    assert config[f"{prefix}.assertion.jwt.template.file"] == "/etc/claims.json"


def test_how_a_token_is_had_may_be_said_in_librdkafkas_options() -> None:
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": TOKENS,
        "sasl.oauthbearer.client.id": "app",
        "sasl.oauthbearer.client.secret": "hunter2",
        "sasl.oauthbearer.scope": "kafka",
    }
    assert sasl(given) == given


def test_unsigned_tokens_for_trials_are_librdkafkas() -> None:
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=app",
    }
    assert client_config({**SERVERS, **given}).items() >= given.items()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "token.endpoint.url is missing"),
        ({"sasl.oauthbearer.header.urlencode": "true"}, "must be false"),
        ({"sasl.login.callback.handler.class": "a.B"}, "OAuthBearerLoginCallbackHandler"),
        ({"sasl.oauthbearer.jwt.retriever.class": "a.B"}, "or JwtBearerJwtRetriever"),
        ({"sasl.jaas.config": f"{OAUTH} clientSecret=hunter2;"}, "no clientId and clientSecret"),
        (
            {"sasl.jaas.config": f"{OAUTH} unsecuredLoginStringClaim_sub=hunter2;"},
            "may have clientId",
        ),
        ({"sasl.jaas.config": f'{OAUTH} ssl.protocol="hunter2";'}, "kafka.https.ca.location"),
    ],
)
def test_a_token_that_cannot_be_had_is_refused(options: dict[str, str], what: str) -> None:
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": TOKENS,
        "sasl.jaas.config": f"{OAUTH} clientId=app clientSecret=hunter2;",
    }
    assert what in refusal({**given, **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {
                "sasl.jaas.config": f"{KERBEROS} useKeyTab=true storeKey=true"
                ' keyTab="/etc/app.keytab" principal="app@EXAMPLE.COM" serviceName="kafka";',
                "sasl.kerberos.min.time.before.relogin": "30000",
            },
            {
                "sasl.kerberos.service.name": "kafka",
                "sasl.kerberos.keytab": "/etc/app.keytab",
                "sasl.kerberos.principal": "app@EXAMPLE.COM",
                "sasl.kerberos.min.time.before.relogin": 30000,
            },
        ),
        (
            {
                "sasl.jaas.config": f"{KERBEROS} useTicketCache=true;",
                "sasl.kerberos.service.name": "kafka",
            },
            # No kinit: the ticket comes from the cache.
            {"sasl.kerberos.service.name": "kafka", "sasl.kerberos.min.time.before.relogin": 0},
        ),
        (
            {
                "sasl.jaas.config": f"{KERBEROS} keyTab='/k';",
                "sasl.kerberos.kinit.cmd": "/opt/my krb5/kinit",
            },
            {
                "sasl.kerberos.keytab": "/k",
                "sasl.kerberos.kinit.cmd": "'/opt/my krb5/kinit' -R"
                ' -t "%{sasl.kerberos.keytab}" -k %{sasl.kerberos.principal}'
                " || '/opt/my krb5/kinit'"
                ' -t "%{sasl.kerberos.keytab}" -k %{sasl.kerberos.principal}',
            },
        ),
    ],
)
def test_kerberos_takes_key_table_and_principal(
    options: dict[str, str], expected: dict[str, object]
) -> None:
    # Not through client_config: the wheels' librdkafka has no Kerberos.
    assert sasl_config(options) == {"sasl.mechanism": "GSSAPI", **expected}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "kafka.sasl.jaas.config is missing"),
        ({"sasl.jaas.config": f"{KERBEROS} ticketCache='/tmp/c';"}, "KRB5CCNAME"),
        ({"sasl.kerberos.min.time.before.relogin": "soon"}, "from 0 to 86400000"),
    ],
)
def test_a_ticket_that_cannot_be_had_is_refused(options: dict[str, str], what: str) -> None:
    jaas = {"sasl.jaas.config": f"{KERBEROS} keyTab='/k';"} if "relogin" in str(options) else {}
    with pytest.raises(OptionError, match=what):
        sasl_config({**jaas, **options})


def test_a_librdkafka_without_kerberos_says_how_to_get_one() -> None:
    message = refusal({"sasl.jaas.config": f"{KERBEROS} keyTab='/k' principal='a@B';"})
    assert message.startswith("kafka.sasl.mechanism='GSSAPI' needs a librdkafka with Kerberos")
    assert "pip install --no-binary confluent-kafka" in message
