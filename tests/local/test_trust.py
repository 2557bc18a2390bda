import ssl
import subprocess
from pathlib import Path

import pytest

from headrace.local import Java
from headrace.local.trust import key_store, system_certificates, trust_options

# "CN=Headrace test authority", of which nobody has the key, valid for a hundred years.
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUcAAN0771wvg3DTWaXW8awpdoL/8wCgYIKoZIzj0EAwIw
IjEgMB4GA1UEAwwXSGVhZGdhdGUgdGVzdCBhdXRob3JpdHkwIBcNMjYxMTIxMDk1
NjI1WhgPMjEyNjEwMjgwOTU2MjVaMCIxIDAeBgNVBAMMF0hlYWRnYXRlIHRlc3Qg
YXV0aG9yaXR5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaJMRXlJ8YFTI/5+k
lgyp/yMm99K4lkwH9EsWXikxcMR3sXUKhxfbKRnD/7WRwh8JLV0V0tE9GzW/zH3Z
0ZWTcaNTMFEwHQYDVR0OBBYEFK8MMuIllACOC4ojWSlCgDKUYuqFMB8GA1UdIwQY
MBaAFK8MMuIllACOC4ojWSlCgDKUYuqFMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI
zj0EAwIDSAAwRQIhAOOH/0Y0oZEahhK51wTfrBp6LYVORwTzkiIWxqacPLRqAiAU
HMwGy26ccCm6EhEuPDG3zhYOe9nCgaIE4DrSlIDO6A==
-----END CERTIFICATE-----
"""


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """The one certificate that OpenSSL trusts here."""
    bundle = tmp_path / "certificates" / "ca-certificates.crt"
    bundle.parent.mkdir()
    bundle.write_text(AUTHORITY)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "nothing"))
    return ssl.PEM_cert_to_DER_cert(AUTHORITY)


def test_the_machines_certificates_are_those_that_openssl_trusts(authority: bytes) -> None:
    assert system_certificates() == [authority]


def test_a_folder_of_certificates_counts_where_there_is_no_file(
    authority: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing"))
    assert system_certificates() == []
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "certificates"))
    assert system_certificates() == [authority]


def test_java_reads_the_key_store(java: Java, authority: bytes, tmp_path: Path) -> None:
    store = tmp_path / "trusted.jks"
    store.write_bytes(key_store([authority]))
    keytool = [str(java.executable), "-m", "java.base/sun.security.tools.keytool.Main"]
    said = subprocess.check_output(
        [*keytool, "-list", "-rfc", "-storetype", "jks", "-keystore", str(store)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert "contains 1 entry" in said
    assert "".join(AUTHORITY.split()) in "".join(said.split())


def test_the_options_name_a_key_store_of_the_machines_certificates(
    authority: bytes, tmp_path: Path
) -> None:
    store, kind = trust_options(tmp_path)
    assert store == f"-Djavax.net.ssl.trustStore={tmp_path}/trusted.jks"
    assert kind == "-Djavax.net.ssl.trustStoreType=jks"
    assert (tmp_path / "trusted.jks").read_bytes() == key_store([authority])
