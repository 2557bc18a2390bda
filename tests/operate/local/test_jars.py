import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.services.connector import SPARK_CONNECTOR, connector_jars

from headrace.errors import SetupError
from headrace.operate.local import Java, kafka_server_jars
from headrace.operate.local.java import trust_options

SETTINGS = """\
<ivysettings>
  <settings defaultResolver="folder"/>
  <resolvers>
    <filesystem name="folder">
      <artifact pattern="{repository}/[organisation]/[module]-[revision].[ext]"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""

# Stands for a Java that trusts nobody until it is told whom, and for Ivy with it.
SUSPICIOUS = """\
#!/bin/sh
case "$*" in
  *-Djavax.net.ssl.trustStore=*) for pattern do :; done; mkdir -p "${pattern%/*}" ;;
  *) echo "SSLHandshakeException: PKIX path building failed"; exit 1 ;;
esac
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the only place where Ivy looks; the cache is empty too."""
    folder = tmp_path / "repository"
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(repository=folder))
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def publish(repository: Path) -> Callable[[], None]:
    """``publish()`` puts the connector's jars there."""

    def put() -> None:
        for artifact in SPARK_CONNECTOR:
            jar = repository / artifact.organisation / f"{artifact.name}-{artifact.revision}.jar"
            jar.parent.mkdir(parents=True, exist_ok=True)
            jar.write_text(str(artifact))

    return put


def test_jars_that_cannot_be_fetched_are_an_error_with_ivys_last_words(
    java: Java, repository: Path, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match="HEADRACE_IVY_SETTINGS") as raised:
        kafka_server_jars(java)
    assert "org.apache.kafka#kafka_2.13;4.1.0: not found" in str(raised.value)
    left = {path.name for path in (tmp_path / "cache" / "jars").iterdir()}
    assert left == {"lock"}


def test_a_failed_fetch_is_tried_again(java: Java, publish: Callable[[], None]) -> None:
    with pytest.raises(SetupError):
        connector_jars(java)
    publish()
    assert len(connector_jars(java)) == len(SPARK_CONNECTOR)


def test_the_connectors_jars_are_fetched_once_whoever_asks(
    java: Java, publish: Callable[[], None]
) -> None:
    publish()
    said: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: connector_jars(java, said.append), range(3)))
    assert said == [f"Fetching the jars of {SPARK_CONNECTOR[0]} through Ivy"]
    assert answers[0] == answers[1] == answers[2]
    assert {jar.read_text() for jar in answers[0]} == {str(each) for each in SPARK_CONNECTOR}


@pytest.mark.integration
def test_a_java_that_does_not_trust_the_server_is_told_whom_this_machine_trusts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    java = Java(tmp_path / "home", "17.0.15", "JAVA_HOME")
    java.executable.parent.mkdir(parents=True)
    java.executable.write_text(SUSPICIOUS)
    java.executable.chmod(0o755)
    assert kafka_server_jars(java).is_dir()


@pytest.mark.integration
def test_fetching_ahead_ends_with_one_message_and_status_1_when_it_cannot(
    repository: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.operate.local"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("Fetching the jars of org.apache.kafka:kafka_2.13")
    assert done.stderr.startswith("Ivy could not download the jars; ")


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
def authority(tmp_path: Path) -> Path:
    """The bundle with the one certificate that OpenSSL is to trust."""
    bundle = tmp_path / "certificates" / "ca-certificates.crt"
    bundle.parent.mkdir()
    bundle.write_text(AUTHORITY)
    return bundle


def aliases(java: Java, folder: Path) -> str:
    """What Java lists of the key store that the options name."""
    store, kind = trust_options(folder)
    assert store == f"-Djavax.net.ssl.trustStore={folder}/trusted.jks"
    assert kind == "-Djavax.net.ssl.trustStoreType=jks"
    keytool = [str(java.executable), "-m", "java.base/sun.security.tools.keytool.Main"]
    return subprocess.check_output(
        [*keytool, "-list", "-rfc", "-storetype", "jks", "-keystore", store.split("=")[1]],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.integration
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_java_trusts_whom_openssl_trusts(
    java: Java,
    authority: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "nothing"))
    assert "contains 0 entries" in aliases(java, tmp_path)
    place = authority if variable == "SSL_CERT_FILE" else authority.parent
    monkeypatch.setenv(variable, str(place))
    listed = aliases(java, tmp_path)
    assert "contains 1 entry" in listed
    assert "".join(AUTHORITY.split()) in "".join(listed.split())
