"""SASL: Java's login configuration, in librdkafka's options."""

import shlex
from collections.abc import Callable, Mapping
from typing import Final

from headrace.errors import OptionError
from headrace.kafka.client_values import Value, whole
from headrace.kafka.jaas import EXAMPLE, parse_jaas
from headrace.kafka.redaction import shown

_JAAS: Final = "sasl.jaas.config"
_LOGIN_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)


def sasl_config(options: Mapping[str, str]) -> dict[str, Value]:
    """Write librdkafka's ``sasl.*`` options for Java's.

    Raises:
        OptionError: Something is missing, malformed, or cannot be translated.
    """
    login = parse_jaas(options[_JAAS]) if _JAAS in options else None
    mechanism = options.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        raise OptionError(
            f"{shown('sasl.mechanism', options['sasl.mechanism'])} is not supported; it must be"
            f" one of {', '.join(_MECHANISMS)}."
        )
    handler = options.get("sasl.login.callback.handler.class")
    if handler is not None and (mechanism != "OAUTHBEARER" or handler not in _LOGIN_HANDLERS):
        raise OptionError(
            f"{shown('sasl.login.callback.handler.class', handler)} cannot run here, for there is"
            f" no Java; leave it out, or for OAUTHBEARER give {_LOGIN_HANDLERS[0]}, which is"
            " built in."
        )
    modules, translate = _MECHANISMS[mechanism]
    if login is not None and login.module not in modules:
        raise OptionError(
            f"kafka.{_JAAS} (its value is not shown) names a login module that does not fit"
            f" kafka.sasl.mechanism={mechanism} (GSSAPI where none is given);"
            f" for it that must be {' or '.join(modules)}."
        )
    return {"sasl.mechanism": mechanism, **translate(options, login.options if login else {})}


def _password(options: Mapping[str, str], login: Mapping[str, str]) -> dict[str, Value]:
    if login.get("tokenauth", "").lower() == "true":
        raise OptionError(
            f"kafka.{_JAAS} has tokenauth=true, and librdkafka has no delegation tokens; give the"
            " user's own name and password."
        )
    if "sasl.username" in options and "sasl.password" in options and not login:
        return {}  # librdkafka's own names, passed on as they are
    if not login.get("username") or not login.get("password"):
        raise OptionError(
            f"kafka.{_JAAS} gives no username and password, which"
            f" kafka.sasl.mechanism={options.get('sasl.mechanism')} needs; write {EXAMPLE}"
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
_EXTENSION: Final = "extension_"
_OWN_OAUTH: Final = ("sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt")


def _oauth(options: Mapping[str, str], login: Mapping[str, str]) -> dict[str, Value]:
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
        return config  # how a token is had is said in librdkafka's own options
    if "sasl.oauthbearer.token.endpoint.url" not in config:
        raise OptionError(
            "kafka.sasl.oauthbearer.token.endpoint.url is missing, which"
            " kafka.sasl.mechanism=OAUTHBEARER needs; give the address that issues tokens."
        )
    if "sasl.oauthbearer.grant.type" not in config and not config.keys() >= _CREDENTIALS:
        raise OptionError(
            f"kafka.{_JAAS} gives no clientId and clientSecret, which"
            " kafka.sasl.mechanism=OAUTHBEARER needs; write"
            " org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
            ' clientId="ID" clientSecret="SECRET";'
        )
    return {"sasl.oauthbearer.method": "oidc", **config}


def _check_login(options: Mapping[str, str], login: Mapping[str, str]) -> None:
    encode = options.get("sasl.oauthbearer.header.urlencode", "false")
    if encode.lower() != "false":
        raise OptionError(
            f"{shown('sasl.oauthbearer.header.urlencode', encode)} is not supported; it must be"
            " false, with a client id and secret that need no encoding."
        )
    if not all(name in _LOGIN_OPTIONS or name.startswith(_EXTENSION) for name in login):
        raise OptionError(
            f"kafka.{_JAAS} (its value is not shown) may have {', '.join(_LOGIN_OPTIONS)} and"
            " extension_NAME for OAUTHBEARER; give other certificates of the token's issuer with"
            " kafka.https.ca.location, and for unsigned tokens use"
            " kafka.enable.sasl.oauthbearer.unsecure.jwt."
        )


def _grant(options: Mapping[str, str]) -> str:
    name = options.get("sasl.oauthbearer.jwt.retriever.class", "DefaultJwtRetriever")
    simple = name.rpartition(".")[2]
    if simple not in _GRANTS:
        raise OptionError(
            f"{shown('sasl.oauthbearer.jwt.retriever.class', name)} cannot run here, for there is"
            f" no Java; it must be {' or '.join(_GRANTS)}."
        )
    return _GRANTS[simple]


def _kerberos(options: Mapping[str, str], login: Mapping[str, str]) -> dict[str, Value]:
    config: dict[str, Value] = {}
    if _JAAS not in options and "sasl.kerberos.keytab" not in options:
        raise OptionError(
            f"kafka.{_JAAS} is missing, which kafka.sasl.mechanism=GSSAPI needs; give a"
            " Krb5LoginModule with keyTab and principal, or with useTicketCache=true."
        )
    if "ticketCache" in login:
        raise OptionError(
            f"kafka.{_JAAS} has a ticketCache, which is the same for a whole process here; leave"
            " it out and set the variable KRB5CCNAME of the driver and the executors."
        )
    if service := options.get("sasl.kerberos.service.name", login.get("serviceName")):
        config["sasl.kerberos.service.name"] = service
    if keytab := login.get("keyTab"):
        config["sasl.kerberos.keytab"] = keytab
    if principal := login.get("principal"):
        config["sasl.kerberos.principal"] = principal
    relogin = "sasl.kerberos.min.time.before.relogin"
    if _JAAS in options and "keyTab" not in login:
        config[relogin] = 0  # the ticket comes from the cache: kinit is never run
    elif relogin in options:
        config[relogin] = whole(0, 86_400_000).read(relogin, options[relogin])
    if kinit := options.get("sasl.kerberos.kinit.cmd"):
        command, of = (
            shlex.quote(kinit),
            '-t "%{sasl.kerberos.keytab}" -k %{sasl.kerberos.principal}',
        )
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
