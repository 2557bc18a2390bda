"""TLS: Java's key stores and trust stores, in librdkafka's options."""

import re
from collections.abc import Mapping
from typing import Final

from headrace.errors import OptionError
from headrace.kafka.client.option_values import Value, describe

_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def tls_config(options: Mapping[str, str]) -> dict[str, Value]:
    """Write librdkafka's ``ssl.*`` options for Java's."""
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
            "kafka.ssl.truststore.password is given for a PEM trust store, which has none; leave it"
            " out."
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
            "kafka.ssl.keystore.password is given for a PEM key store, which has none; give the"
            " password of its key as kafka.ssl.key.password."
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
            f"kafka.{inline[0]} is given alone; give both kafka.ssl.keystore.certificate.chain and"
            " kafka.ssl.keystore.key."
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
            "kafka.ssl.keystore.password is missing, which a PKCS12 key store needs; give it."
        )
    if options.get("ssl.key.password", password) != password:
        raise OptionError(
            "kafka.ssl.key.password differs from kafka.ssl.keystore.password, and a PKCS12 key"
            " store has one password; give that one, or the key as PEM."
        )
    location = options["ssl.keystore.location"]
    return {"ssl.keystore.location": location, "ssl.keystore.password": password}


def _check_protocols(options: Mapping[str, str]) -> None:
    protocols = options.get("ssl.enabled.protocols")
    if protocols is not None and "tlsv1.2" not in re.split(r"[\s,]+", protocols.lower()):
        raise OptionError(
            f"{describe('ssl.enabled.protocols', protocols)} cannot be kept to, for librdkafka"
            " takes TLS 1.2 or 1.3, the newest that a broker has; it must have TLSv1.2 in it: leave"
            " it out and have the brokers allow only what you want."
        )


def _exclude(options: Mapping[str, str], one: str, other: str) -> None:
    if one in options and other in options:
        raise OptionError(f"kafka.{one} and kafka.{other} are both given; give one of them.")


def pem(text: str) -> str:
    """The PEM blocks of a text with their line breaks, which Java does not need, and OpenSSL does.

    >>> print(pem("-----BEGIN CERTIFICATE----- TUlJ QQ== -----END CERTIFICATE-----"), end="")
    -----BEGIN CERTIFICATE-----
    TUlJQQ==
    -----END CERTIFICATE-----
    """
    return _PEM_BLOCK.sub(_broken_into_lines, text)


def _broken_into_lines(block: re.Match[str]) -> str:
    label, body = block[1], block[2]
    if ":" in body:  # the headers of an old encrypted key, whose lines have a meaning
        return block[0]
    data = "".join(body.split())
    lines = [data[at : at + 64] for at in range(0, len(data), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))
