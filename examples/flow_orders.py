"""Orders through two stages, linked by topics: checked, then stored, each once.

    headrace up --topic orders.raw --topic orders.good --topic orders.bad
    export KAFKA=localhost:9092                     # the address that it prints
    headrace flow show flow_orders:flow
    headrace flow run flow_orders:flow              # in the folder of this file

The last command runs it until Ctrl-C; or `--stage check` and `--stage store` in an application
each. The folder of a batch is named by its key, so that a batch that is run again after a crash
writes over what it wrote before.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import Batch
from headrace.flow import Flow, kafka

KAFKA = os.environ.get("KAFKA", "localhost:9092")

flow = Flow("orders", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
flow.channel("raw", kafka("orders.raw", KAFKA))
flow.channel("good", kafka("orders.good", KAFKA))
flow.channel("bad", kafka("orders.bad", KAFKA))


@flow.stage("check", reads="raw", writes=["good", "bad"])
def check(df: DataFrame, batch: Batch) -> dict[str, DataFrame]:
    """Part the orders that have an amount from what has none."""
    amount = F.get_json_object(F.col("value").cast("string"), "$.amount").try_cast("double")
    is_good = F.coalesce(amount > 0, F.lit(False))
    return {"good": df.where(is_good).select("value"), "bad": df.where(~is_good).select("value")}


@flow.stage("store", reads="good")
def store(df: DataFrame, batch: Batch) -> None:
    """Keep the good ones."""
    df.select("value").write.mode("overwrite").parquet(f"orders/batch={batch.key}")
