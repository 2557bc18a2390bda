"""SASL, from Java's login configuration to librdkafka's options."""

from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.kafka.client.config import client_config
from headrace.gate.kafka.client.security import parse_jaas, sasl_config

SERVERS = {"bootstrap.servers": "kafka:9092", "security.protocol": "SASL_PLAINTEXT"}
MODULES = "org.apache.kafka.common.security"
MODULE = f"{MODULES}.plain.PlainLoginModule"
PLAIN = f"{MODULE} required"
SCRAM = f"{MODULES}.scram.ScramLoginModule required"
OAUTH = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required"
TOKENS = "https://login.example.com/token"


def sasl(options: Mapping[str, str]) -> dict[str, object]:
    """Return client_config's settings of SASL for these; assert that librdkafka accepts all."""
    config = client_config({**SERVERS, **options})
    Consumer({**config, "group.id": "x", "bootstrap.servers": ""}).close()
    return {name: value for name, value in config.items() if name.startswith("sasl.")}


def login(text: str, mechanism: str = "PLAIN") -> dict[str, str]:
    """A login module's line, for a mechanism."""
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": text}


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
    assert sasl(login(jaas, mechanism)) == {
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
        ({"sasl.mechanism": "PLAIN"}, "needs a username and a password"),
        (login(f"{PLAIN} password=hunter2;"), "needs a username and a password"),
        (login("hunter2"), "the word 'required'"),
        ({"sasl.jaas.config": f"{PLAIN} password=hunter2;"}, "default: GSSAPI"),
        (login(f"{KERBEROS} keyTab=hunter2;"), "PlainLoginModule or ScramLoginModule"),
        (
            login(f"{SCRAM} username=u password=hunter2 tokenauth='true';", "SCRAM-SHA-256"),
            "does not support delegation tokens",
        ),
        (
            login(f"{PLAIN} username=u password=hunter2;")
            | {"sasl.username": "u", "sasl.password": "hunter2"},
            "kafka.sasl.username and kafka.sasl.jaas.config are both given",
        ),
        ({"sasl.mechanism": "AWS"}, "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (
            {
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
            },
            "set kafka.sasl.mechanism=OAUTHBEARER and kafka.oauth.token=MODULE:FUNCTION",
        ),
        ({"sasl.client.callback.handler.class": "a.B"}, "kafka.oauth.token=MODULE:FUNCTION"),
        ({"sasl.login.class": "a.B"}, "kafka.sasl.mechanism"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.login.callback.handler.class": "a.B"},
            "Headrace cannot run; leave the option out",
        ),
    ],
)
def test_a_login_that_cannot_be_kept_is_refused(options: dict[str, str], what: str) -> None:
    assert what in refusal(options)


OAUTHBEARER = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": TOKENS}
CREDENTIALS = {"sasl.oauthbearer.client.id": "app", "sasl.oauthbearer.client.secret": "hunter2"}
SCOPE = {"sasl.oauthbearer.scope": "kafka"}
FETCHED = {"sasl.oauthbearer.method": "oidc", **CREDENTIALS}
LOGIN = f"{OAUTH} clientId=app clientSecret=hunter2"
PRIVATE_KEY = {
    "sasl.oauthbearer.assertion.private.key.file": "/etc/key.pem",
    "sasl.oauthbearer.assertion.claim.sub": "app",
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sasl.jaas.config": f'{LOGIN} scope="kafka";'}, {**FETCHED, **SCOPE}),
        (
            {
                "sasl.jaas.config": f"{OAUTH};",
                "sasl.oauthbearer.client.credentials.client.id": "app",
                "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
                "sasl.oauthbearer.jwt.retriever.class": "a.b.ClientCredentialsJwtRetriever",
                **SCOPE,
            },
            {**FETCHED, **SCOPE},
        ),
        (
            {
                "sasl.jaas.config": f"{LOGIN};",
                "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.secured"
                ".OAuthBearerLoginCallbackHandler",
            },
            FETCHED,
        ),
        (  # as Databricks documents it for Entra ID
            {
                "sasl.jaas.config": f'kafkashaded.{LOGIN} scope="kafka" ssl.protocol="SSL";',
                "sasl.login.callback.handler.class": f"kafkashaded.{MODULES}.oauthbearer.secured"
                ".OAuthBearerLoginCallbackHandler",
            },
            {**FETCHED, **SCOPE},
        ),
        (
            {"sasl.jaas.config": f"{LOGIN} extension_cluster='lkc-1' extension_pool='p-2';"},
            {**FETCHED, "sasl.oauthbearer.extensions": "cluster=lkc-1,pool=p-2"},
        ),
        # With an assertion that is signed here.
        (
            {
                "sasl.oauthbearer.jwt.retriever.class": "a.b.JwtBearerJwtRetriever",
                "sasl.oauthbearer.assertion.template.file": "/etc/claims.json",
                **PRIVATE_KEY,
            },
            {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
                "sasl.oauthbearer.assertion.jwt.template.file": "/etc/claims.json",
                **PRIVATE_KEY,
            },
        ),
        # In librdkafka's own options.
        ({**FETCHED, **SCOPE}, {**FETCHED, **SCOPE}),
    ],
)
def test_tokens_are_fetched_by_librdkafka(given: dict[str, str], expected: dict[str, str]) -> None:
    assert sasl({**OAUTHBEARER, **given}) == {**OAUTHBEARER, **expected}


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
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "token.endpoint.url, which is missing"),
        ({"sasl.oauthbearer.header.urlencode": "true"}, "must be false"),
        ({"sasl.login.callback.handler.class": "a.B"}, "OAuthBearerLoginCallbackHandler"),
        (
            {
                "sasl.login.callback.handler.class": "software.amazon.msk.auth.iam"
                ".IAMOAuthBearerLoginCallbackHandler"
            },
            "option out, and set kafka.sasl.mechanism=OAUTHBEARER and kafka.oauth.token=",
        ),
        ({"sasl.oauthbearer.jwt.retriever.class": "a.B"}, "or JwtBearerJwtRetriever"),
        ({"sasl.jaas.config": f"{OAUTH} clientSecret=hunter2;"}, "not give both; write org.apache"),
        (
            {"sasl.jaas.config": f"{OAUTH} unsecuredLoginStringClaim_sub=hunter2;"},
            "may have only clientId",
        ),
        ({"sasl.jaas.config": f'{OAUTH} ssl.protocol="hunter2";'}, "kafka.https.ca.location"),
    ],
)
def test_a_token_that_cannot_be_had_is_refused(options: dict[str, str], what: str) -> None:
    assert what in refusal({**OAUTHBEARER, "sasl.jaas.config": f"{LOGIN};", **options})


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
        ({}, "needs kafka.sasl.jaas.config, which is missing"),
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


# A lone surrogate is no text that could be an option.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}


def quoted(text: str, quote: str = '"') -> str:
    """A text as one writes it between Java's quotes."""
    escapes = {**_ESCAPES, quote: "\\" + quote}
    return quote + "".join(escapes.get(c, c) for c in text) + quote


@given(TEXTS, TEXTS, st.sampled_from("\"'"))
def test_any_name_and_password_come_back_as_they_were_quoted(
    username: str, password: str, quote: str
) -> None:
    text = f"{PLAIN} username={quoted(username, quote)} password={quoted(password)};"
    parsed = parse_jaas(text)
    assert parsed.module == "PlainLoginModule"
    assert parsed.options == {"username": username, "password": password}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"a\\"b"', 'a"b'),
        ("'a\\'b'", "a'b"),
        ('"\\101\\60"', "A0"),
        ('"\\400"', " 0"),  # an octal number ends before it exceeds a byte
        ('"\\t\\n\\q"', "\t\nq"),
        ('"//no comment"', "//no comment"),
        ("a-b_c$d.e1", "a-b_c$d.e1"),
        ("é", "é"),
    ],
)
def test_a_value_is_read_as_java_reads_it(written: str, meant: str) -> None:
    assert parse_jaas(f"M required k={written};").options == {"k": meant}


@pytest.mark.parametrize(
    "text",
    [
        f"{PLAIN} k=v;",
        f"\n {MODULE}\n  REQUIRED\n  k = 'v' ;\n",
        f"/* who */ {MODULE} optional // how\n k=v; // end",
        f"kafkashaded.{MODULE} requisite k=v;",
        "PlainLoginModule sufficient k=v;",
    ],
)
def test_space_comments_flags_and_packages_do_not_matter(text: str) -> None:
    parsed = parse_jaas(text)
    assert (parsed.module, parsed.options) == ("PlainLoginModule", {"k": "v"})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "login module"),
        ("hunter2", "login module"),
        (f"{MODULE} username=hunter2;", "login module"),
        ("= required password=hunter2;", "login module"),
        (f"{PLAIN} password=hunter2", "no ;"),
        (f"{PLAIN} password hunter2;", 'name="value"'),
        (f"{PLAIN} password=;", 'name="value"'),
        (f"{PLAIN} =hunter2;", 'name="value"'),
        (f"{PLAIN} password==hunter2;", 'name="value"'),
        (f'{PLAIN} password="hunter2;', "open quote"),
        (f'{PLAIN} password="hunter2\n";', "open quote"),
        (f"{PLAIN} password=hunter2!;", "in quotes"),
        (f"{PLAIN} password=2hunter2;", "in quotes"),
        (f"{PLAIN}; {PLAIN} password=hunter2;", "more than one"),
    ],
)
def test_what_is_malformed_is_refused_without_showing_it(text: str, what: str) -> None:
    with pytest.raises(OptionError, match=what) as refused:
        parse_jaas(text)
    assert "kafka.sasl.jaas.config" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_and_never_shown(text: str) -> None:
    try:
        shown = repr(parse_jaas(f"M required password=hunter2{text}hunter2;"))
    except OptionError as error:
        shown = str(error)
    assert "hunter2" not in shown
