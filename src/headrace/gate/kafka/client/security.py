"""Translation of TLS and SASL options, and of Java's login configuration (JAAS), for librdkafka."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import OptionError
from headrace.gate.kafka.client.option_values import Value, describe, integer
from headrace.gate.kafka.client.tokens import OPTION as TOKEN

_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def tls_config(options: Mapping[str, str]) -> dict[str, Value]:
    """Translate Java's ``ssl.*`` options to librdkafka's; raise `OptionError` where that fails."""
    config = {**_trust(options), **_key(options)}
    _check_protocols(options)
    algorithm = options.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        if algorithm.lower() not in ("", "https", "none"):
            raise OptionError(
                f"{describe('ssl.endpoint.identification.algorithm', algorithm)} is not valid; it"
                " must be https, or empty to trust a broker of any name."
            )
        config["ssl.endpoint.identification.algorithm"] = algorithm.lower() or "none"
    return config


def _trust(options: Mapping[str, str]) -> dict[str, Value]:
    location = options.get("ssl.truststore.location")
    certificates = options.get("ssl.truststore.certificates")
    if location is None and certificates is None:
        return {}
    kind = options.get("ssl.truststore.type", "JKS")
    if kind.upper() != "PEM":
        raise OptionError(
            f"{describe('ssl.truststore.type', kind)} (JKS is the default) cannot be read here;"
            " write its certificates into a PEM file with `keytool -list -rfc -keystore STORE >"
            " ca.pem` and give kafka.ssl.truststore.type=PEM and"
            " kafka.ssl.truststore.location=ca.pem."
        )
    if "ssl.truststore.password" in options:
        raise OptionError(
            "kafka.ssl.truststore.password is given for a PEM trust store, which has no password;"
            " leave it out."
        )
    if certificates is not None:
        _exclude(options, "ssl.truststore.certificates", "ssl.truststore.location")
        return {"ssl.ca.pem": pem(certificates)}
    return {"ssl.ca.location": str(location)}


def _key(options: Mapping[str, str]) -> dict[str, Value]:
    location = options.get("ssl.keystore.location")
    inline = [n for n in ("ssl.keystore.certificate.chain", "ssl.keystore.key") if n in options]
    if location is None and not inline:
        return {}
    kind = options.get("ssl.keystore.type", "JKS").upper()
    if kind == "PKCS12" and location is not None and not inline:
        return _pkcs12(options)
    if kind != "PEM":
        raise OptionError(
            f"{describe('ssl.keystore.type', options.get('ssl.keystore.type', 'JKS'))} (JKS is the"
            " default) cannot be read here; convert the store with `keytool -importkeystore"
            " -srckeystore STORE -destkeystore client.p12 -deststoretype PKCS12` and give"
            " kafka.ssl.keystore.type=PKCS12 and kafka.ssl.keystore.location=client.p12."
        )
    if "ssl.keystore.password" in options:
        raise OptionError(
            "kafka.ssl.keystore.password is given for a PEM key store, which has no password; give"
            " the password of the key as kafka.ssl.key.password."
        )
    config: dict[str, Value] = {}
    if "ssl.key.password" in options:
        config["ssl.key.password"] = options["ssl.key.password"]
    if location is not None:
        for name in inline:
            _exclude(options, name, "ssl.keystore.location")
        return {**config, "ssl.certificate.location": location, "ssl.key.location": location}
    if len(inline) == 1:
        raise OptionError(
            f"kafka.{inline[0]} is given without its counterpart; give both"
            " kafka.ssl.keystore.certificate.chain and kafka.ssl.keystore.key."
        )
    return {
        **config,
        "ssl.certificate.pem": pem(options["ssl.keystore.certificate.chain"]),
        "ssl.key.pem": pem(options["ssl.keystore.key"]),
    }


def _pkcs12(options: Mapping[str, str]) -> dict[str, Value]:
    password = options.get("ssl.keystore.password")
    if not password:
        raise OptionError(
            "A PKCS12 key store needs kafka.ssl.keystore.password, which is missing; set it."
        )
    if options.get("ssl.key.password", password) != password:
        raise OptionError(
            "kafka.ssl.key.password differs from kafka.ssl.keystore.password, and a PKCS12 key"
            " store has one password; leave kafka.ssl.key.password out, or give the key as PEM."
        )
    location = options["ssl.keystore.location"]
    return {"ssl.keystore.location": location, "ssl.keystore.password": password}


def _check_protocols(options: Mapping[str, str]) -> None:
    protocols = options.get("ssl.enabled.protocols")
    if protocols is not None and "tlsv1.2" not in re.split(r"[\s,]+", protocols.lower()):
        raise OptionError(
            f"{describe('ssl.enabled.protocols', protocols)} is not supported: it must include"
            " TLSv1.2, because librdkafka uses the newest of TLS 1.2 and 1.3 that a broker has;"
            " leave the option out, and restrict the protocols in the brokers."
        )


def _exclude(options: Mapping[str, str], one: str, other: str) -> None:
    if one in options and other in options:
        raise OptionError(f"kafka.{one} and kafka.{other} are both given; give one of them.")


def pem(text: str) -> str:
    """Return a PEM text with line breaks, which OpenSSL requires and Java does not.

    >>> print(pem("-----BEGIN CERTIFICATE----- TUlJ QQ== -----END CERTIFICATE-----"), end="")
    -----BEGIN CERTIFICATE-----
    TUlJQQ==
    -----END CERTIFICATE-----
    """
    return _PEM_BLOCK.sub(_broken_into_lines, text)


def _broken_into_lines(block: re.Match[str]) -> str:
    label, body = block[1], block[2]
    if ":" in body:  # Headers of an old encrypted key, whose line breaks matter.
        return block[0]
    data = "".join(body.split())
    lines = [data[at : at + 64] for at in range(0, len(data), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


_JAAS: Final = "sasl.jaas.config"
_EXAMPLE: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="NAME" password="PASSWORD";'
)

# The tokens of java.io.StreamTokenizer, as Kafka's JaasConfig configures it.
_TOKEN: Final = re.compile(
    r"""
      (?P<space>[\x00-\x20]+|//[^\r\n]*|/\*.*?\*/)
    | (?P<word>[A-Za-z_$\u00a0-\U0010ffff][A-Za-z0-9_$.\u00a0-\U0010ffff-]*)
    | "(?P<double>(?:[^"\\\r\n]|\\[^\r\n])*)"
    | '(?P<single>(?:[^'\\\r\n]|\\[^\r\n])*)'
    | (?P<mark>[=;])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_SHADED: Final = "kafkashaded."
"""Prefix of the names of Kafka's classes in Databricks."""

_BY_FUNCTION: Final = (
    f"set kafka.sasl.mechanism=OAUTHBEARER and kafka.{TOKEN}=MODULE:FUNCTION, a function of yours"
    " that returns a token (docs/kafka-client-options.md has functions for AWS, Google and Azure)"
)
"""Advice in errors about a login class in Java, which Headrace cannot run."""
_CLOUDS: Final = ("software.amazon.msk.", "com.google.cloud.", "com.azure.", "com.microsoft.")

_LOGIN_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)


def sasl_config(options: Mapping[str, str]) -> dict[str, Value]:
    """Translate Java's ``sasl.*`` options to librdkafka's; raise `OptionError` where that fails."""
    login = parse_jaas(options[_JAAS]) if _JAAS in options else None
    mechanism = options.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism == "AWS_MSK_IAM":
        raise OptionError(
            f"{describe('sasl.mechanism', options['sasl.mechanism'])} is not supported, because"
            f" only a Java class makes IAM's signatures, and Headrace runs no Java; {_BY_FUNCTION}."
        )
    if mechanism not in _MECHANISMS:
        raise OptionError(
            f"{describe('sasl.mechanism', options['sasl.mechanism'])} is not supported; it must be"
            f" one of {', '.join(_MECHANISMS)}."
        )
    _check_handler(options.get("sasl.login.callback.handler.class"), mechanism)
    modules, translate = _MECHANISMS[mechanism]
    if login is not None and login.module == "IAMLoginModule":
        raise OptionError(
            f"kafka.{_JAAS} names IAMLoginModule, a Java class, which Headrace cannot run;"
            f" {_BY_FUNCTION}."
        )
    if login is not None and login.module not in modules:
        raise OptionError(
            f"kafka.{_JAAS} (its value is not shown) names a login module that does not fit"
            f" kafka.sasl.mechanism={mechanism} (default: GSSAPI); the module must be"
            f" {' or '.join(modules)}."
        )
    return {"sasl.mechanism": mechanism, **translate(options, login.options if login else {})}


def _check_handler(handler: str | None, mechanism: str) -> None:
    if handler is None:
        return
    described = describe("sasl.login.callback.handler.class", handler)
    if mechanism != "OAUTHBEARER":
        raise OptionError(
            f"{described} names a Java class, which Headrace cannot run; leave the option out,"
            f" because kafka.sasl.mechanism={mechanism} needs no class."
        )
    if handler.removeprefix(_SHADED) not in _LOGIN_HANDLERS:
        if handler.removeprefix(_SHADED).startswith(_CLOUDS):
            raise OptionError(
                f"{described} is a Java class, which Headrace cannot run; leave the option out, and"
                f" {_BY_FUNCTION}."
            )
        raise OptionError(
            f"{described} names a Java class, which Headrace cannot run; for OAUTHBEARER it must be"
            f" {_LOGIN_HANDLERS[0]}, in place of which Headrace itself fetches tokens; or"
            f" {_BY_FUNCTION}."
        )


def _password(options: Mapping[str, str], login: Mapping[str, str]) -> dict[str, Value]:
    if login.get("tokenauth", "").lower() == "true":
        raise OptionError(
            f"kafka.{_JAAS} has tokenauth=true, but librdkafka does not support delegation tokens;"
            " give the user's own name and password."
        )
    if "sasl.username" in options and "sasl.password" in options and not login:
        return {}  # librdkafka's own names, passed on unchanged.
    if not login.get("username") or not login.get("password"):
        raise OptionError(
            f"kafka.sasl.mechanism={options.get('sasl.mechanism')} needs a username and a password,"
            f" but kafka.{_JAAS} does not give both; write {_EXAMPLE}"
        )
    return {"sasl.username": login["username"], "sasl.password": login["password"]}


_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_GRANTS: Final = {
    "DefaultJwtRetriever": "client_credentials",
    "ClientCredentialsJwtRetriever": "client_credentials",
    "JwtBearerJwtRetriever": _JWT_BEARER,
}
_CREDENTIALS: Final = {"sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"}
_LOGIN_OPTIONS: Final = ("clientId", "clientSecret", "scope")
_TLS_PROTOCOLS: Final = ("SSL", "TLS", "TLSv1.2", "TLSv1.3")
"""Allowed values of ``ssl.protocol``: OpenSSL negotiates these protocols with the token issuer."""
_EXTENSION: Final = "extension_"
_OWN_OAUTH: Final = ("sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt")


def _oauth(options: Mapping[str, str], login: Mapping[str, str]) -> dict[str, Value]:
    if TOKEN in options:
        conflicting = [name for name in options if "sasl.oauthbearer." in name]
        if conflicting or login:
            conflict = f"kafka.{conflicting[0]}" if conflicting else f"kafka.{_JAAS}, with options,"
            raise OptionError(f"kafka.{TOKEN} and {conflict} are both given; leave one out.")
        return {TOKEN: options[TOKEN]}
    config: dict[str, Value] = {}
    for target, name, jaas_name in (
        ("token.endpoint.url", "token.endpoint.url", ""),
        ("client.id", "client.credentials.client.id", "clientId"),
        ("client.secret", "client.credentials.client.secret", "clientSecret"),
        ("scope", "scope", "scope"),
    ):
        if value := options.get(f"sasl.oauthbearer.{name}", login.get(jaas_name)):
            config[f"sasl.oauthbearer.{target}"] = value
    extensions = {
        n.removeprefix(_EXTENSION): v for n, v in login.items() if n.startswith(_EXTENSION)
    }
    if extensions:
        config["sasl.oauthbearer.extensions"] = ",".join(f"{n}={v}" for n, v in extensions.items())
    _check_login(options, login)
    if _grant(options) == _JWT_BEARER:
        config["sasl.oauthbearer.grant.type"] = _JWT_BEARER
    if any(name in options for name in _OWN_OAUTH):
        return config  # librdkafka's own options define how to get a token.
    if "sasl.oauthbearer.token.endpoint.url" not in config:
        raise OptionError(
            "kafka.sasl.mechanism=OAUTHBEARER needs kafka.sasl.oauthbearer.token.endpoint.url,"
            " which is missing; give the address that issues tokens."
        )
    if "sasl.oauthbearer.grant.type" not in config and not config.keys() >= _CREDENTIALS:
        raise OptionError(
            "kafka.sasl.mechanism=OAUTHBEARER needs a clientId and a clientSecret, but"
            f" kafka.{_JAAS} does not give both; write"
            " org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
            ' clientId="ID" clientSecret="SECRET";'
        )
    return {"sasl.oauthbearer.method": "oidc", **config}


def _check_login(options: Mapping[str, str], login: Mapping[str, str]) -> None:
    encode = options.get("sasl.oauthbearer.header.urlencode", "false")
    if encode.lower() != "false":
        raise OptionError(
            f"{describe('sasl.oauthbearer.header.urlencode', encode)} is not supported; it must be"
            " false, so use a client id and secret that need no encoding."
        )
    if not all(
        name in _LOGIN_OPTIONS
        or name.startswith(_EXTENSION)
        or (name == "ssl.protocol" and value in _TLS_PROTOCOLS)
        for name, value in login.items()
    ):
        raise OptionError(
            f"For OAUTHBEARER, kafka.{_JAAS} (its value is not shown) may have only"
            f" {', '.join(_LOGIN_OPTIONS)}, extension_NAME and ssl.protocol"
            f" ({', '.join(_TLS_PROTOCOLS)}); name other certificates of the token's issuer with"
            " kafka.https.ca.location, and for unsigned tokens use"
            " kafka.enable.sasl.oauthbearer.unsecure.jwt."
        )


def _grant(options: Mapping[str, str]) -> str:
    name = options.get("sasl.oauthbearer.jwt.retriever.class", "DefaultJwtRetriever")
    simple = name.rpartition(".")[2]
    if simple not in _GRANTS:
        raise OptionError(
            f"{describe('sasl.oauthbearer.jwt.retriever.class', name)} cannot run, because Headrace"
            f" runs no Java; it must be {' or '.join(_GRANTS)}."
        )
    return _GRANTS[simple]


def _kerberos(options: Mapping[str, str], login: Mapping[str, str]) -> dict[str, Value]:
    config: dict[str, Value] = {}
    if _JAAS not in options and "sasl.kerberos.keytab" not in options:
        raise OptionError(
            f"kafka.sasl.mechanism=GSSAPI needs kafka.{_JAAS}, which is missing; give a"
            " Krb5LoginModule with keyTab and principal, or with useTicketCache=true."
        )
    if "ticketCache" in login:
        raise OptionError(
            f"kafka.{_JAAS} has a ticketCache, but a process can have only one ticket cache; leave"
            " it out, and set the environment variable KRB5CCNAME of the driver and the executors."
        )
    for name, value in (
        ("service.name", options.get("sasl.kerberos.service.name", login.get("serviceName"))),
        ("keytab", login.get("keyTab")),
        ("principal", login.get("principal")),
    ):
        if value:
            config[f"sasl.kerberos.{name}"] = value
    relogin = "sasl.kerberos.min.time.before.relogin"
    if _JAAS in options and "keyTab" not in login:
        config[relogin] = 0  # The ticket comes from the cache: kinit is never run.
    elif relogin in options:
        config[relogin] = integer(0, 86_400_000).read(relogin, options[relogin])
    if kinit := options.get("sasl.kerberos.kinit.cmd"):
        command = shlex.quote(kinit)
        of = '-t "%{sasl.kerberos.keytab}" -k %{sasl.kerberos.principal}'
        config["sasl.kerberos.kinit.cmd"] = f"{command} -R {of} || {command} {of}"
    return config


_Translate = Callable[[Mapping[str, str], Mapping[str, str]], dict[str, Value]]
_PASSWORD_MODULES: Final = ("PlainLoginModule", "ScramLoginModule")
_MECHANISMS: Final[dict[str, tuple[tuple[str, ...], _Translate]]] = {
    "PLAIN": (_PASSWORD_MODULES, _password),
    "SCRAM-SHA-256": (_PASSWORD_MODULES, _password),
    "SCRAM-SHA-512": (_PASSWORD_MODULES, _password),
    "OAUTHBEARER": (("OAuthBearerLoginModule",), _oauth),
    "GSSAPI": (("Krb5LoginModule",), _kerberos),
}


@dataclass(frozen=True, slots=True)
class Login:
    """Login module of a JAAS configuration: class name without package, and secret options."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> Login:
    """Parse the value of ``sasl.jaas.config`` as Java does. `OptionError` never quotes the value.

    >>> parse_jaas('a.b.PlainLoginModule required username="u" password="p";').options
    {'username': 'u', 'password': 'p'}
    """
    tokens = _tokens(text)
    if len(tokens) < 2 or tokens[0][0] == "mark" or tokens[1][1].lower() not in _FLAGS:
        raise _malformed("does not begin with a login module and the word 'required'")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and tokens[at] != ("mark", ";"):
        setting = tokens[at : at + 3]
        if [kind == "mark" for kind, _ in setting] != [False, True, False] or setting[1][1] != "=":
            raise _malformed('has a setting that is not of the form name="value"')
        options[setting[0][1]] = setting[2][1]
        at += 3
    if at == len(tokens):
        raise _malformed("has no ; at its end")
    if at != len(tokens) - 1:
        raise _malformed("has more than one login module")
    return Login(tokens[0][1].rpartition(".")[2], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _malformed("has an open quote, or a character that must stand in quotes")
        kind = str(match.lastgroup)
        if kind in ("double", "single"):
            tokens.append(("text", _ESCAPE.sub(_unescape, match[kind])))
        elif kind != "space":
            tokens.append((kind, match[kind]))
        at = match.end()
    return tokens


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def _malformed(what: str) -> OptionError:
    return OptionError(
        f"kafka.sasl.jaas.config (its value is not shown) {what}; write it as in Java, for instance"
        f" {_EXAMPLE}"
    )
