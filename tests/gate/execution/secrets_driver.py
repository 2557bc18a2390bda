"""A program with secrets among its options, which keeps all that Spark shows of it.

Its ledger's URL, with the password, and Kafka's secrets come by its standard input.
"""

import contextlib
import io
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.services.waiting import wait_until

import headrace
from headrace import Batch, Gate


def main(folder: Path, servers: str, topic: str) -> None:
    given = json.loads(sys.stdin.readline())
    spark = (
        SparkSession.builder.master("local-cluster[1,2,768]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "768m")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", (folder / "shown").as_uri())
        .config("spark.eventLog.compress", "false")
        .getOrCreate()
    )
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **given["kafka"],
    }
    gate = Gate("orders", interval="1 second", ledger=given["ledger"])
    stream = gate.read(spark, "kafka").options(**options).load()

    def handler(df: DataFrame, _batch: Batch) -> None:
        if df.where("value = 'bad'").count():
            raise ValueError("a bad one")

    query = (
        gate.write(stream, handler, on_failure="isolate")
        .option("checkpointLocation", str(folder / "shown" / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    # By options alone, as another gate of the same ledger. Here Spark itself has to know a secret
    # by its option's name; as with its own connector, a private key without a password is none.
    del options["kafka.ssl.keystore.key"]
    headrace.register(spark, ledger=given["ledger"])
    bare = (
        spark.readStream.format("headrace-kafka")
        .options(**options, **{"headrace.gate": "bare", "headrace.ledger": given["public"]})
        .load()
    )
    other = (
        bare.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "shown" / "other"))
        .trigger(availableNow=True)
        .start()
    )
    # Spark shows a write, too, as a command.
    row = spark.range(1).selectExpr("'good' as value")
    sink = {name: value for name, value in options.items() if name.startswith("kafka.")}
    row.write.format("headrace-kafka").mode("append").options(**sink, topic=topic).save()
    query.awaitTermination()
    other.awaitTermination()
    wait_until(lambda: query.lastProgress and other.lastProgress)
    said = [each.json for each in (*query.recentProgress, *other.recentProgress)]
    with contextlib.redirect_stdout(io.StringIO()) as explained:
        for df in (stream, bare):
            df.explain(extended=True)
            df.explain("formatted")
        query.explain(extended=True)
        other.explain(extended=True)
    application = spark.sparkContext.applicationId
    pages = (
        *("SQL/", "StreamingQuery/", "environment/", "jobs/"),
        f"api/v1/applications/{application}/sql?details=true&length=1000",
    )
    said += [explained.getvalue(), *(page(f"{spark.sparkContext.uiWebUrl}/{p}") for p in pages)]
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    said.append(processes.stdout)
    (folder / "shown" / "said").write_text("\n".join(said))
    spark.stop()


def page(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310  (Spark's own address)
        return str(answer.read().decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
