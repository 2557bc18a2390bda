"""Signals over an encrypted connection to ZooKeeper, between those who know each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.flow.samples import a_signal
from tests.flow.worlds import ZookeeperWorld
from tests.gate.kafka.client_certificates import CERTIFICATE, KEY
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.errors import OptionError, SignalError
from headrace.flow import ZookeeperSession, ZookeeperSettings
from headrace.operate.local import Java
from headrace.operate.local.servers import free_ports

pytestmark = pytest.mark.nightly

WAIT_S = 60.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a certificate that has signed itself, and so is its own authority."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "certificate.pem").write_text(CERTIFICATE)
    (folder / "key.pem").write_text(KEY)
    (folder / "both.pem").write_text(KEY + CERTIFICATE)
    return {
        "ca_file": f"{folder}/certificate.pem",
        "certificate_file": f"{folder}/certificate.pem",
        "key_file": f"{folder}/key.pem",
    }


@pytest.fixture(scope="module")
def secure_port(java: Java, files: dict[str, str]) -> Iterator[int]:
    """The port of a server that asks its clients over TLS for a certificate."""
    (port,) = free_ports(1)
    settings = {
        "secureClientPort": str(port),
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(Path(files["key_file"]).with_name("both.pem")),
        "ssl.trustStore.location": files["ca_file"],
        "ssl.clientAuth": "need",
    }
    with ZookeeperServer(java, settings=settings):
        yield port


def refuses(port: int, host: str = "127.0.0.1", **changes: Any) -> ZookeeperSettings:
    return ZookeeperSettings(
        f"{host}:{port}", tls=True, start_timeout_s=2.0, unreachable="refuse", **changes
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_is_sent_over_tls_is_received(
    secure_port: int, files: dict[str, str], flow: str, host: str
) -> None:
    with ZookeeperWorld(flow, f"{host}:{secure_port}", tls=True, **files) as world:
        a, b = world.join("a", ["b"]), world.join("b")
        b.send(a_signal(flow=flow))
        assert a.receive(WAIT_S) == [a_signal(flow=flow)]


def test_certificate_and_key_may_be_in_one_file(secure_port: int, files: dict[str, str]) -> None:
    both = str(Path(files["key_file"]).with_name("both.pem"))
    settings = ZookeeperSettings(
        f"127.0.0.1:{secure_port}",
        tls=True,
        ca_file=files["ca_file"],
        certificate_file=both,
        start_timeout_s=WAIT_S,
        unreachable="refuse",
    )
    with ZookeeperSession(settings) as session:
        wait_until(lambda: session.is_connected)


@pytest.mark.parametrize(
    "missing",
    [["ca_file"], ["certificate_file", "key_file"]],
    ids=["an unknown server", "an unknown client"],
)
def test_without_the_right_certificate_there_is_no_session(
    secure_port: int, files: dict[str, str], missing: list[str]
) -> None:
    shown = {name: file for name, file in files.items() if name not in missing}
    with pytest.raises(SignalError, match="did not respond within 2 s"):
        ZookeeperSession(refuses(secure_port, **shown))


def test_the_certificate_of_another_host_is_not_trusted(
    secure_port: int, files: dict[str, str]
) -> None:
    with pytest.raises(SignalError, match=r"ZooKeeper at 127\.0\.0\.2:\d+ did not respond"):
        ZookeeperSession(refuses(secure_port, "127.0.0.2", **files))


def test_certificates_that_cannot_be_read_are_told_in_one_sentence(
    secure_port: int, files: dict[str, str]
) -> None:
    for name in ("ca_file", "certificate_file"):
        changed = {**files, name: "/no/such/file.pem"}
        with pytest.raises(OptionError, match=r"certificates for .* cannot be used: No such"):
            ZookeeperSession(refuses(secure_port, **changed))
