"""Certificates that are made for one test: an authority, and what it signs."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_A_DAY = timedelta(days=1)


class CertificateFiles(NamedTuple):
    """The paths of a certificate and of its key."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; its own is ``ca``, a path."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        made = _begun(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self._certificate = made.sign(self._key, hashes.SHA256())
        self.ca = str(folder / f"{name}.pem")
        Path(self.ca).write_bytes(_pem(self._certificate))

    def issue(self, name: str, begins: timedelta = -_A_DAY) -> CertificateFiles:
        """A certificate of this name, for 127.0.0.1 and localhost, in files of the name.

        It is valid for two days, which begin so long after now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        places = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        made = _begun(_named(name), self._name, key.public_key(), begins).add_extension(
            x509.SubjectAlternativeName(places), critical=False
        )
        files = CertificateFiles(
            str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key")
        )
        Path(files.certificate).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        Path(files.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: timedelta = -_A_DAY,
) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) + begins
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + 2 * _A_DAY)
    )
