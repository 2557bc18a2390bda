"""A wrong flow is one error, before anything starts; so is a wrong output of a handler."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.flow.flows import NOWHERE, a_flow, nothing

from headrace.errors import LedgerError, OptionError
from headrace.flow import Flow, kafka
from headrace.flow.kafka_channel import KafkaChannel
from headrace.flow.running import outputs
from headrace.flow.stage import refuse_aliases
from headrace.gate.control.pressure import HopSettings

HERE = re.escape(Path(__file__).name)


@pytest.fixture
def flow() -> Flow:
    flow = Flow("shop", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
    flow.channel("raw", kafka("raw", NOWHERE))
    flow.channel("clean", kafka("clean", NOWHERE), schema="id bigint, name string")
    return flow


def refused(flow: Flow, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        flow.check()


def test_a_chain_with_fan_out_and_fan_in_is_a_flow() -> None:
    flow = a_flow(
        ("one", "raw", ["clean"]),
        ("other", "more", ["clean", "bad"]),
        ("store", "clean", []),
        ("count", "clean", []),
        ("letters", "bad", []),
    )
    flow.check()
    assert flow.graph.upstream("store") == ("one", "other")
    assert flow.graph.downstream("other") == ("store", "count", "letters")
    assert flow.graph.upstream("one") == ()
    assert flow.gate("store") == "shop.store"


def test_a_handler_is_still_the_function_that_it_was(flow: Flow) -> None:
    assert flow.stage("clean", reads="raw")(nothing) is nothing


def test_an_error_names_the_stage_and_the_line_of_its_declaration(flow: Flow) -> None:
    flow.stage("clean", reads="row")(nothing)
    (stage,) = flow.graph.stages.values()
    number = int(stage.declared_at.rpartition(":")[2])
    line = Path(__file__).read_text().splitlines()[number - 1]
    assert 'flow.stage("clean", reads="row")' in line
    refused(flow, rf"Stage 'clean' \(.*{HERE}:{number}\) reads the channel 'row', which")


@pytest.mark.parametrize(
    ("stages", "channels", "sentence"),
    [
        ([], {}, "Flow 'shop' has no stage"),
        (
            [("clean", "raw", ["clean", "bad"])],
            {},
            "Stage 'clean' .* writes the channel 'bad', which is not declared; .* 'raw', 'cl",
        ),
        ([("clean", "raw", ["clean", "clean"])], {}, "Stage 'clean' .* names a channel twice"),
        (
            [("sink", "raw", [])],
            {},
            rf"Channel 'clean' \(.*{HERE}:\d+\) is neither written",
        ),
        (
            [("clean", "raw", ["clean", "again"])],
            {"again": kafka("raw", NOWHERE)},
            "Channel 'again' .* is the same as Channel 'raw' .*: the topic raw at .*; declare the",
        ),
    ],
)
def test_stages_and_channels_that_do_not_fit_are_refused(
    flow: Flow,
    stages: list[tuple[str, str, list[str]]],
    channels: dict[str, KafkaChannel],
    sentence: str,
) -> None:
    for name, channel in channels.items():
        flow.channel(name, channel)
    for name, reads, writes in stages:
        flow.stage(name, reads=reads, writes=writes)(nothing)
    refused(flow, sentence)


def test_a_handler_must_be_a_function(flow: Flow) -> None:
    flow.stage("clean", reads="raw", writes="clean")("clean")  # type: ignore[arg-type]
    refused(flow, "Stage 'clean' .* decorates 'clean', which cannot be called")


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 101, None])
def test_names_are_those_of_signals(flow: Flow, name: Any) -> None:
    with pytest.raises(OptionError, match="The name of a flow is"):
        Flow(name, ledger="sqlite:///headrace.db", checkpoints="c")
    with pytest.raises(OptionError, match="The name of a stage is"):
        flow.stage(name, reads="raw")
    with pytest.raises(OptionError, match="The name of a channel is"):
        flow.channel(name, kafka("elsewhere", NOWHERE))


def test_a_ledger_is_checked_when_the_flow_is_made() -> None:
    with pytest.raises(LedgerError, match="mysql"):
        Flow("shop", ledger="mysql://host/db", checkpoints="c")


def test_a_name_is_declared_once(flow: Flow) -> None:
    flow.stage("clean", reads="raw")(nothing)
    with pytest.raises(OptionError, match=rf"Stage 'clean' \(.*{HERE}:\d+\) is declared a second"):
        flow.stage("clean", reads="raw")
    with pytest.raises(OptionError, match=r"Channel 'raw' .* is declared a second"):
        flow.channel("raw", kafka("elsewhere", NOWHERE))


def test_two_channels_are_not_one_however_they_are_read(flow: Flow) -> None:
    flow.channel("one", kafka("orders", NOWHERE))
    flow.channel("other", kafka("orders", NOWHERE, **{"kafka.client.id": "x"}))
    flow.stage("clean", reads="raw", writes=["clean", "one"])(nothing)
    flow.stage("dirty", reads="raw", writes=["other"])(nothing)
    refused(flow, rf"Channel 'other' \(.*{HERE}:\d+\) is the same as Channel 'one' .*: .*orders")


def test_channels_with_one_id_and_two_addresses_are_refused(flow: Flow) -> None:
    flow.channel("one", kafka("orders", "localhost:9092"))
    flow.channel("other", kafka("orders", "127.0.0.1:9092"))
    flow.stage("copy", reads="raw", writes="clean")(nothing)
    flow.stage("loop", reads="one", writes="other")(nothing)
    flow.check()
    refuse_aliases(flow, {"one": "id", "other": "another id", "raw": "id of raw"})
    expected = rf"'other' \(.*{HERE}:\d+\) is the same as Channel 'one' .*id"
    with pytest.raises(OptionError, match=expected):
        refuse_aliases(flow, {"one": "id", "other": "id"})


@pytest.mark.parametrize(
    ("reads", "writes", "sentence"),
    [
        (["raw", "clean"], "clean", r"reads \['raw', 'clean'\]; a stage reads one channel"),
        (None, "clean", "reads None; a stage reads one channel"),
        ("raw", [1], "writes 1; give the names of channels"),
    ],
)
def test_channels_are_named_by_texts(flow: Flow, reads: Any, writes: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=rf"Stage 'join' \(.*{HERE}:\d+\) {sentence}"):
        flow.stage("join", reads=reads, writes=writes)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_cycles_are_refused(length: int) -> None:
    ring = [(f"s{n}", f"c{n}", [f"c{(n + 1) % length}"]) for n in range(length)]
    refused(a_flow(*ring), r"Stage 's\d' .* is in a cycle: s\d -> .*; a flow must have no cycle")


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"interval": "1 sekunde"}, "1 sekunde"),
        ({"interval": "0 seconds"}, "interval"),
        ({"on_failure": "ignore"}, "on_failure is 'ignore'"),
        ({"backfill": "never"}, "never"),
    ],
)
def test_what_a_gate_refuses_is_refused_with_the_stages_line(
    flow: Flow, declared: dict[str, str], sentence: str
) -> None:
    flow.stage("clean", reads="raw", writes="clean", **declared)(nothing)  # type: ignore[arg-type]
    refused(flow, rf"Stage 'clean' \(.*{HERE}:\d+\): .*{sentence}")


def test_thresholds_in_the_wrong_order_are_refused_where_they_are_made() -> None:
    with pytest.raises(OptionError, match=r"light_load_bytes .* must be below overload_bytes"):
        HopSettings(overload_bytes=10, light_load_bytes=20)


SAME = [
    "id BIGINT, name STRING",
    "id: long,name:string",
    " `id`  LONG , `name` string ",
    StructType([StructField("id", LongType()), StructField("name", StringType())]),
]


@pytest.mark.parametrize("schema", SAME)
def test_schemas_that_say_the_same_match(flow: Flow, schema: str | StructType) -> None:
    flow.stage("clean", reads="raw", writes="clean")(nothing)
    flow.stage("store", reads="clean", schema=schema)(nothing)
    flow.check()


@pytest.mark.parametrize("schema", ["id int, name string", "name string, id bigint", "id bigint"])
def test_schemas_that_differ_are_refused(flow: Flow, schema: str) -> None:
    flow.stage("clean", reads="raw", writes="clean")(nothing)
    flow.stage("store", reads="clean", schema=schema)(nothing)
    refused(flow, rf"Stage 'store' .* reads values with the schema '{schema}', but Channel 'clean'")


def test_a_schema_that_only_one_end_names_is_nobodys_business(flow: Flow) -> None:
    flow.stage("clean", reads="raw", writes="clean", schema="id int")(nothing)
    flow.check()


def test_only_stages_that_there_are_can_be_started(flow: Flow) -> None:
    flow.stage("clean", reads="raw", writes="clean")(nothing)
    with pytest.raises(OptionError, match="Flow 'shop' has no stage 'store'; its stages are 'clea"):
        flow.start(None, stages=["store"])  # type: ignore[arg-type]


class Frame(DataFrame):
    """A DataFrame of which nothing is computed."""

    def __new__(cls) -> "Frame":
        return object.__new__(cls)

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "Frame"


ONE, OTHER = Frame(), Frame()


def answered(writes: list[str], made: Any) -> dict[str, DataFrame]:
    flow = a_flow(("split", "raw", writes))
    return outputs(flow.graph.stages["split"], made)


def test_each_channel_is_given_what_is_for_it() -> None:
    assert answered([], None) == {}
    assert answered(["good"], ONE)["good"] is ONE
    assert answered(["good"], {"good": ONE})["good"] is ONE
    both = answered(["good", "bad"], {"bad": OTHER, "good": ONE})
    assert (both["good"], both["bad"]) == (ONE, OTHER)


@pytest.mark.parametrize(
    ("writes", "made", "sentence"),
    [
        (
            [],
            ONE,
            "a value of type Frame; it must return None, because the stage writes no channel",
        ),
        (["good"], None, "nothing; it must return a DataFrame for the channel 'good'"),
        (["good"], 7, "a value of type int; it must return a DataFrame"),
        (["good", "bad"], ONE, "a DataFrame for each of the channels .'good', 'bad'., by name"),
        (["good", "bad"], {"good": ONE}, "a mapping with the names .'good'.; it must return"),
        (["good", "bad"], {"good": ONE, "bad": None}, "nothing for the channel 'bad'"),
    ],
)
def test_another_answer_is_refused_with_the_stages_line(
    writes: list[str], made: Any, sentence: str
) -> None:
    with pytest.raises(
        OptionError, match=rf"Stage 'split' \(.*flows.py:\d+\): the handler .*{sentence}"
    ):
        answered(writes, made)
