"""The PID estimator beside Spark's own class: the same doubles, to the last bit.

Spark's class runs in a JVM of its own. A few lines of Java around it, compiled there by the
compiler that Spark carries for its generated code, run a whole sequence of batches in one call.
"""

import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.java_gateway import launch_gateway
from tests.services.examples import examples

from headrace.gate.control.pid import PIDRateEstimator
from headrace.operate.local import Java

pytestmark = pytest.mark.nightly

Batch = tuple[int, int, int, int]
Answers = list[float | None]

RUNNER = """
import java.io.*;
import org.apache.spark.streaming.scheduler.rate.PIDRateEstimator;
import scala.Option;

public class Runner {
  public byte[] run(byte[] input) throws IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(input));
    PIDRateEstimator estimator = new PIDRateEstimator(
        in.readLong(), in.readDouble(), in.readDouble(), in.readDouble(), in.readDouble());
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    while (in.available() > 0) {
      Option answer = estimator.compute(in.readLong(), in.readLong(), in.readLong(), in.readLong());
      out.writeBoolean(answer.isDefined());
      out.writeDouble(answer.isDefined() ? ((Double) answer.get()).doubleValue() : 0.0);
    }
    return bytes.toByteArray();
  }
}
"""


@dataclass(frozen=True)
class Settings:
    """The arguments of an estimator."""

    batch_interval_ms: int
    proportional: float
    integral: float
    derivative: float
    min_rate: float

    def estimator(self) -> PIDRateEstimator:
        return PIDRateEstimator(
            self.batch_interval_ms,
            self.proportional,
            self.integral,
            self.derivative,
            self.min_rate,
        )

    def packed(self) -> bytes:
        return struct.pack(
            ">qdddd",
            self.batch_interval_ms,
            self.proportional,
            self.integral,
            self.derivative,
            self.min_rate,
        )


SparkPID = Callable[[Settings, list[Batch]], Answers]


@pytest.fixture(scope="module")
def spark_pid(java: Java) -> Iterator[SparkPID]:
    """Spark's estimator: settings and batches in, its answers out."""
    assert java  # it has set the environment that the gateway starts in
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    jvm: Any = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(RUNNER)
    runner = compiler.getClassLoader().loadClass("Runner").newInstance()

    def run(arguments: Settings, batches: list[Batch]) -> Answers:
        packed = arguments.packed() + b"".join(struct.pack(">qqqq", *batch) for batch in batches)
        answers = struct.iter_unpack(">?d", runner.run(packed))
        return [rate if defined else None for defined, rate in answers]

    yield run
    gateway.shutdown()
    gateway.proc.stdin.close()  # which is what makes the JVM end
    gateway.proc.wait(timeout=60)


def answers_of(estimator: PIDRateEstimator, batches: list[Batch]) -> Answers:
    return [estimator.compute(*batch) for batch in batches]


def first_difference(ours: Answers, sparks: Answers) -> int | None:
    """The number of the first batch on which the two do not give exactly the same; None if none."""
    assert len(ours) == len(sparks)
    for number, (our, spark) in enumerate(zip(ours, sparks, strict=True)):
        if our != spark:
            return number
    return None


gains = st.one_of(st.sampled_from([0.0, 0.2, 1.0]), st.floats(0, 100))
arguments = st.builds(
    Settings,
    batch_interval_ms=st.integers(1, 86_400_000),
    proportional=gains,
    integral=gains,
    derivative=gains,
    min_rate=st.one_of(st.just(100.0), st.floats(5e-324, 1.0), st.floats(1.0, 1e9)),
)
magnitudes = st.one_of(
    st.integers(-1, 3), st.integers(1, 100_000), st.integers(1, 10**12), st.integers(1, 2**62)
)


@st.composite
def histories(draw: st.DrawFn) -> list[Batch]:
    """Batches that mostly follow one another in time, but may repeat or go back."""
    steps = draw(
        st.lists(
            st.tuples(
                st.one_of(st.integers(-10, 2000), st.integers(1, 10**9)),
                magnitudes,
                st.one_of(st.integers(-1, 20), st.integers(1, 100_000), st.integers(1, 10**12)),
                st.one_of(st.just(0), st.integers(0, 100_000), st.integers(0, 10**12)),
            ),
            min_size=2,
            max_size=20,
        )
    )
    time_ms = draw(st.sampled_from([-1, 0, 1_700_000_000_000]))
    batches = []
    for step_ms, *rest in steps:
        time_ms += step_ms
        batches.append((time_ms, rest[0], rest[1], rest[2]))
    return batches


@examples(2000)
@given(arguments=arguments, batches=histories())
def test_every_rate_equals_sparks_to_the_last_bit(
    spark_pid: SparkPID, arguments: Settings, batches: list[Batch]
) -> None:
    ours = answers_of(arguments.estimator(), batches)
    assert first_difference(ours, spark_pid(arguments, batches)) is None


def an_ordinary_history(seed: int, batches: int) -> list[Batch]:
    """A job whose batches are about as long as the interval, some of them late."""
    chance = random.Random(seed)
    return [
        (
            1_700_000_000_000 + 1000 * number + chance.randrange(100),
            chance.randrange(4000, 6000),
            chance.randrange(800, 1200),
            chance.choice([0, 0, chance.randrange(500)]),
        )
        for number in range(batches)
    ]


def test_a_long_ordinary_history_gives_the_same_rates(spark_pid: SparkPID) -> None:
    arguments = Settings(1000, 1.0, 0.2, 0.05, 100.0)
    batches = an_ordinary_history(seed=1, batches=5000)
    sparks = spark_pid(arguments, batches)
    assert first_difference(answers_of(arguments.estimator(), batches), sparks) is None
    assert sum(rate is not None for rate in sparks) == 4999


def test_counts_that_a_double_cannot_hold_are_rounded_as_sparks_are(spark_pid: SparkPID) -> None:
    chance = random.Random(5)
    arguments = Settings(1000, 1.0, 0.2, 0.05, 100.0)
    batches = [
        (1000 * number, chance.randrange(2**53, 2**62), chance.randrange(1, 10**6), 0)
        for number in range(2000)
    ]
    ours = answers_of(arguments.estimator(), batches)
    assert first_difference(ours, spark_pid(arguments, batches)) is None


ORDINARY = Settings(1000, 1.0, 0.2, 0.05, 100.0)


@pytest.mark.parametrize("gain", ["proportional", "integral", "derivative"])
def test_the_comparison_catches_another_gain(spark_pid: SparkPID, gain: str) -> None:
    batches = an_ordinary_history(seed=2, batches=50)
    other = replace(ORDINARY, **{gain: 1.001 * getattr(ORDINARY, gain)}).estimator()
    assert first_difference(answers_of(other, batches), spark_pid(ORDINARY, batches)) is not None


def test_the_comparison_catches_a_single_bit_and_a_rate_where_spark_gives_none(
    spark_pid: SparkPID,
) -> None:
    batches = an_ordinary_history(seed=3, batches=50)
    answers, sparks = answers_of(ORDINARY.estimator(), batches), spark_pid(ORDINARY, batches)
    off = math.nextafter(answers[39] or 0.0, math.inf)
    assert first_difference([*answers[:39], off, *answers[40:]], sparks) == 39
    assert first_difference([100.0, *answers[1:]], sparks) == 0
