"""An HDFS of one's own: a NameNode and a DataNode in one Java process."""

import json
import shutil
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Self

import pyspark
from tests.gate.kafka.client_certificates import PASSWORD, PKCS12

from headrace.operate.local import Java
from headrace.operate.local.java import Artifact, Progress, fetched_jars, ignore
from headrace.operate.local.servers import ServerProcess, free_ports

HOST = "127.0.0.1"
START_TIMEOUT_S = 120
METRICS_MS = 5
"""For so long what was once said of a count is said again."""


def hdfs_jars(java: Java, progress: Progress = ignore) -> Path:
    """The folder of Hadoop's jar for tests, of pyspark's own version; fetched (56 MB) once."""
    (client,) = _pyspark_jars().glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    artifact = Artifact("org.apache.hadoop", "hadoop-client-minicluster", version)
    return fetched_jars("hdfs", (artifact,), java, progress)


class HdfsServer(ServerProcess):
    """One file system, on the loopback address, over HTTP and HTTPS, its data in its own folder.

    The certificate is that of `tests.gate.kafka.client_certificates`. It ends with ``close``, and
    at the latest when this process ends.
    """

    def __init__(self, java: Java, jars: Path) -> None:
        super().__init__()
        self.port, self.tls_port = free_ports(2)
        self.authority = f"{HOST}:{self.port}"
        self._java = java
        self._jars = jars
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-hdfs-"))

    def start(self) -> None:
        """Start it, and return when files can be written."""
        started = self._folder / "started.json"
        self._configure()
        server = [
            *(str(self._java.executable), "-Xmx256m", "-XX:TieredStopAtLevel=1"),
            *("-XX:+UseSerialGC", "-cp", f"{self._folder}:{self._jars}/*:{_pyspark_jars()}/*"),
            *("org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-nomr", "-format"),
            *("-nnhttpport", str(self.port), "-writeDetails", str(started)),
            *("-D", f"hdfs.minidfs.basedir={self._folder / 'data'}"),
            *("-D", "dfs.http.policy=HTTP_AND_HTTPS"),
            *("-D", f"dfs.namenode.https-address={HOST}:{self.tls_port}"),
            *("-D", f"dfs.datanode.https.address={HOST}:0"),
        ]
        process = self.serve(self._folder, server)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not started.exists():
            words = (self._folder / "server.log").read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"HDFS did not start: {words}"
            assert time.monotonic() < deadline, f"HDFS does not answer: {words}"
            time.sleep(0.05)

    def _configure(self) -> None:
        """Write the files that the server finds by their names."""
        metrics = self._folder / "hadoop-metrics2.properties"
        metrics.write_text(f"*.periodMillis={METRICS_MS}\n")
        store = self._folder / "store.p12"
        store.write_bytes(PKCS12)
        values = {
            "location": store,
            "type": "PKCS12",
            "password": PASSWORD,
            "keypassword": PASSWORD,
        }
        properties = "".join(
            f"<property><name>ssl.server.keystore.{name}</name><value>{value}</value></property>"
            for name, value in values.items()
        )
        file = self._folder / "ssl-server.xml"
        file.write_text(f"<configuration>{properties}</configuration>")

    def syncs(self) -> int:
        """Return the number of times that the DataNode has synced a block's file to its disk."""
        query = "jmx?qry=Hadoop:service=DataNode,name=DataNodeActivity-*"
        with urllib.request.urlopen(f"http://{self.authority}/{query}") as answer:
            return int(json.load(answer)["beans"][0]["FsyncCount"])

    def damage_blocks(self) -> None:
        """Change the last byte of all that is on its disk, which its checksums tell."""
        for block in self._folder.rglob("blk_*[0-9]"):
            data = block.read_bytes()
            block.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def close(self) -> None:
        """Stop it and delete its data."""
        self.kill()
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def _pyspark_jars() -> Path:
    return Path(pyspark.__file__).parent / "jars"
