"""The options of a source: what is taken, and what is refused in a sentence."""

import json
import pickle
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.native import Engine
from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.gate.kafka.kafka_options import (
    OPTIONS,
    KafkaOptions,
    parse_options,
    parse_subscription,
)
from headrace.gate.kafka.kafka_source import KAFKA
from headrace.gate.source.source_options import BATCH_ONLY

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
GATE = {"headrace.gate": "orders", "headrace.ledger": "sqlite:///headrace.db"}
AUTO = GATE | {"headrace.interval": "auto"}


def stream(**options: str) -> KafkaOptions:
    return parse_options(NEEDED | options, streaming=True)


def gated(**options: str) -> KafkaOptions:
    return stream(**GATE, **options)


def refusal(options: dict[str, str], *, streaming: bool = True) -> str:
    with pytest.raises(OptionError) as refused:
        parse_options(options, streaming=streaming)
    return str(refused.value)


def test_the_defaults_are_the_native_connector_s() -> None:
    options = stream()
    assert options.shared.fail_on_data_loss
    assert not options.shared.include_headers
    assert options.shared.min_partitions is None
    assert options.shared.max_records_per_partition is None
    assert options.poll_timeout_ms == 120_000
    assert options.fetch_offset_retries == 3
    assert options.fetch_offset_retry_interval_ms == 1_000
    assert options.shared.limits.max_records is None
    assert options.shared.min_offsets_per_trigger is None
    assert options.shared.max_trigger_delay_ms == 15 * 60_000
    assert options.shared.timestamp_strategy == "error"
    assert options.client["isolation.level"] == "read_uncommitted"


def test_names_are_read_in_any_case_as_spark_lowers_them() -> None:
    lowered = {name.lower(): value for name, value in NEEDED.items()}
    options = parse_options(lowered | {"maxoffsetspertrigger": "5"}, streaming=True)
    assert options.shared.limits.max_records == 5


def test_the_native_engine_reads_unless_python_is_chosen() -> None:
    assert stream().engine is Engine.NATIVE
    assert stream(**{"headrace.engine": "Python"}).engine is Engine.PYTHON
    options = {"Headrace.Engine": "python", "subscribe": "t"}
    assert KAFKA.replay_options(options, [])["Headrace.Engine"] == "python"
    message = refusal({**NEEDED, "headrace.engine": "rust"})
    assert message == ("The option headrace.engine is 'rust'; it must be one of native, python.")


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({}, None),  # without a gate
        (GATE, 100),  # the smallest that can be learnt
        (GATE | {"backpressure.pid.minRate": "7"}, 7),
        (GATE | {"backpressure.initialRate": "500"}, 500),
        (GATE | {"backpressure.enabled": "false"}, None),
    ],
)
def test_the_first_batch_has_the_rate_of_its_gate(
    options: dict[str, str], rate: float | None
) -> None:
    assert stream(**options).shared.limits.initial_rate == rate


def test_the_estimator_has_the_gains_that_are_given() -> None:
    options = gated(
        **{
            "backpressure.rateEstimator": "pid",
            "backpressure.pid.proportional": "0.5",
            "backpressure.pid.integral": "0.1",
            "backpressure.pid.derived": "0.25",
            "backpressure.pid.minRate": "10",
        }
    )
    settings = options.shared.estimator
    assert list(settings.options.values()) == [0.5, 0.1, 0.25]
    assert settings.min_rate == 10


def test_limits_may_differ_by_partition() -> None:
    limits = stream(maxRatePerPartition='{"default": 50, "orders": {"3": 200}}').shared.limits
    assert limits.max_rate_per_partition.of(TopicPartition("orders", 3)) == 200
    assert limits.max_rate_per_partition.of(TopicPartition("orders", 0)) == 50


def test_every_query_has_a_consumer_group_of_its_own_by_default() -> None:
    first, second = stream().client["group.id"], stream().client["group.id"]
    assert first != second
    assert str(stream(groupIdPrefix="team").client["group.id"]).startswith("team-")
    assert stream(**{"kafka.group.id": "mine"}).client["group.id"] == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
         "minOffsetsPerTrigger is 9, more than the 8 of maxOffsetsPerTrigger"),
        ({"subscribe": "a", "minRatePerPartition": "50", "maxRatePerPartition": "5"},
         "minRatePerPartition needs 50"),
        ({"subscribe": "a", "headrace.gate": "g"}, "without a headrace.ledger"),
        ({"subscribe": "a", "headrace.gate": " ", "headrace.ledger": "sqlite:///x"},
         "headrace.gate is ' '; it must have 1 to 200 letters"),
        ({"subscribe": "a", **GATE, "backpressure.initialRate": "99.5"},
         "backpressure.initialRate is 99.5 records/s, below the 100 of backpressure.pid.minRate"),
        ({"subscribe": "a", **GATE, "backpressure.initialRate": "100",
          "backpressure.pid.minRate": "101"}, "below the 101 of backpressure.pid.minRate"),
        ({"subscribe": "a", "headrace.interval": "366 days"}, "at most 365 days"),
        (GATE | {"headrace.maxDelay": "2s"}, "only if headrace.interval is auto"),
        (GATE | {"headrace.workRatio": "0.5", "headrace.interval": "2s"}, "(here: '2s'); set"),
        (AUTO | {"headrace.maxDelay": "199 ms"}, "headrace.maxDelay is 199 ms; it must be a whole"),
        (AUTO | {"headrace.maxDelay": "soon"}, "headrace.maxDelay is 'soon'; it must be"),
        (AUTO | {"headrace.workRatio": "1"}, "headrace.workRatio is 1; it must be below"),
        (AUTO | {"headrace.workRatio": "2"}, "headrace.workRatio is 2.0 (a part); it must be"),
        (AUTO | {"minRatePerPartition": "20", "maxRatePerPartition": "100"}, "in a batch of 0.1 s"),
        ({"subscribe": "a", "backpressure.initialRate": "5"}, "needs a gate"),
        ({"subscribe": "a", "headrace.ledger": "sqlite:///x"}, "needs a gate"),
        ({"subscribe": "a", "headrace.interval": "0"}, "headrace.interval is '0'; it must be"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "now"},
         "startingOffsetsByTimestampStrategy is 'now'; it must be error or latest"),
        ({"subscribe": "a", **GATE, "backpressure.rateEstimator": "gradient"},
         "backpressure.rateEstimator is 'gradient'"),
        ({"subscribe": "a", **GATE, "backpressure.pid.integral": "0.1"},
         "backpressure.pid.integral is '0.1', an option of the law pid"),
        ({"subscribe": "a", **GATE, "backpressure.rateEstimator": "pid",
          "backpressure.pid.proportional": "-1"},
         "backpressure.pid.proportional is '-1'"),
        ({"subscribe": "a", "maxBytesPerTrigger": "10k"}, "maxBytesPerTrigger is '10k'"),
        ({"subscribe": "a", "subscribes": "b"}, "did you mean subscribe?"),
        ({"subscribe": "a", "colour": "red"}, "There is no option colour"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_with_what_is_allowed(
    options: dict[str, str], said: str
) -> None:
    assert said in refusal({"kafka.bootstrap.servers": "127.0.0.1:9092", **options})


def test_the_broker_s_address_is_needed() -> None:
    assert "kafka.bootstrap.servers" in refusal({"subscribe": "orders"})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert f"The option {name} is for a bounded read" in refusal(NEEDED | {name: "latest"})


@pytest.mark.parametrize(
    "name", ["headrace.gate", "backpressure.initialRate", "maxBytesPerTrigger"]
)
def test_a_bounded_read_has_no_gate(name: str) -> None:
    assert f"The option {name} is for a stream" in refusal(NEEDED | {name: "1"}, streaming=False)


def test_a_bounded_read_takes_the_native_connector_s_stream_options_without_effect() -> None:
    options = parse_options(NEEDED | {"maxOffsetsPerTrigger": "5"}, streaming=False)
    assert options.shared.limits.max_records == 5


FREE_TEXT = {
    "subscribe",
    "groupIdPrefix",
    "headrace.gate",
    "headrace.ledger",
    "headrace.read",
    "headrace.commit.group",
    "headrace.channel",
}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in FREE_TEXT])
def test_every_option_that_has_a_form_refuses_another(name: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", name: "(nonsense"}
    if name not in {"subscribePattern", "assign"}:
        given["subscribe"] = "orders"
    if name.startswith("backpressure."):
        given |= GATE
    said = refusal(given, streaming=name not in BATCH_ONLY)
    assert name in said
    assert "(nonsense" in said or name == "decode", "its text may have a secret"


# Secrets of letters that stand together nowhere else.
@given(st.text("QXZ#%&", min_size=6, max_size=20))
def test_what_is_secret_is_never_shown(secret: str) -> None:
    options = stream(
        **{"kafka.sasl.mechanism": "PLAIN", "kafka.security.protocol": "SASL_PLAINTEXT"},
        **{"kafka.sasl.username": "app", "kafka.sasl.password": secret},
        **{"headrace.gate": "g", "headrace.ledger": f"postgresql://app:{secret}@db/x"},
    )
    assert secret not in repr(options)


def test_options_travel_to_another_process() -> None:
    options = gated(maxRatePerPartition='{"default": 50, "orders": {"3": 200}}')
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301  (our own bytes)


def test_topics_are_named_with_commas_and_spaces_and_each_counts_once() -> None:
    assert parse_subscription({"subscribe": " b, a ,b,"}).topics == ("b", "a")


def test_partitions_are_named_by_topic() -> None:
    assigned = parse_subscription({"assign": '{"orders": [2, 0], "returns": [1]}'})
    assert assigned.partitions == (
        TopicPartition("orders", 2),
        TopicPartition("orders", 0),
        TopicPartition("returns", 1),
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {},
            "Nothing says which topics to read; give exactly one of subscribe, subscribePattern and"
            " assign.",
        ),
        (
            {"assign": "{}", "subscribe": "a"},
            "subscribe and assign say which topics to read; give exactly one of subscribe,"
            " subscribePattern and assign.",
        ),
        ({"subscribe": " ,"}, "subscribe is ' ,'; name one topic, or several with commas."),
        (
            {"subscribePattern": " "},
            "subscribePattern is empty; write a regular expression of topic names.",
        ),
        (
            {"subscribePattern": "a("},
            "subscribePattern is 'a('; it is not a valid regular expression: missing ),"
            " unterminated subpattern at position 1.",
        ),
        (
            {"assign": '{"orders": []}'},
            "assign is '{\"orders\": []}'; it must be JSON with the partitions of each topic, such"
            ' as {"orders": [0, 1]}.',
        ),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(given: Mapping[str, str], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_subscription(given)
    assert str(raised.value) == message


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_consumer_group_without_a_name_would_abort_the_process_and_is_refused(blank: str) -> None:
    said = refusal(NEEDED | {"kafka.group.id": blank})
    assert said == "kafka.group.id='' is not valid; it must be a text that is not blank."
    said = refusal(NEEDED | {"headrace.commit.group": blank})
    assert said == (
        f"headrace.commit.group is {blank!r}, which is not a valid name of a consumer group; give a"
        " name, or leave the option out."
    )


@pytest.mark.parametrize("name", ["a/b", "ö", "a b", ".", "..", "x" * 250, "new\nline"])
def test_a_topic_that_kafka_allows_no_name_of_is_refused(name: str) -> None:
    subscriptions = {"subscribe": f"orders,{name}", "assign": json.dumps({name: [0]})}
    for option, text in subscriptions.items():
        said = refusal({"kafka.bootstrap.servers": "127.0.0.1:9092", option: text})
        assert said.startswith(f"{option} names the topic {name[:80]!r}"[:40])
        assert "not a name that Kafka allows; it has 1 to 249 of the characters a-z" in said


def test_the_longest_and_oddest_names_that_kafka_allows_are_taken() -> None:
    names = ("x" * 249, "...", "A.b_c-9")
    assert parse_subscription({"subscribe": ",".join(names)}).topics == names
