"""Checkpoints as Spark writes them, here by hand: read, compared with a ledger, taken back."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.ledgers import gated_ledger, succeed

from headrace.core.ranges import OffsetRange, TopicPartition, merge
from headrace.errors import OptionError, SourceError
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import FindingKind
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.gate.ledger.transitions import Status
from headrace.gate.source.checkpoint import Checkpoint, export
from headrace.gate.source.comparison import (
    Comparison,
    compare_with_checkpoint,
    compare_with_log,
    refuse_a_stranger,
)
from headrace.gate.source.log import Log, Topic
from headrace.gate.source.resumption import unknown_outcome

GATE, RUN, ID = "orders", "5ca1ab1e", "kA2bX0zTQ5q1sV3nY7wZ8g"
BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
OTHER = '{"logOffset":3}'


def ours(until: int, *, begins: int | None = None, gate: str = GATE, run: str = RUN) -> str:
    """The offset of a source of one partition, as Headrace writes it."""
    offset: dict[str, Any] = {"orders": {"0": until}, "@gate": gate, "@checkpoint": run}
    offset["@ids"] = {"orders": ID}
    if begins is not None:
        offset["@from"] = {"orders": {"0": begins}}
    return json.dumps(offset)


def a_checkpoint(
    folder: Path,
    batches: Mapping[int, Sequence[str]],
    committed: Sequence[int] | None = None,
    version: str = "v1",
) -> Path:
    """A checkpoint with these lines for each batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, lines in batches.items():
        (folder / "offsets" / str(number)).write_text("\n".join([version, BATCH, *lines]))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc\0")
    for number in batches if committed is None else committed:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (folder / "metadata").write_text('{"id":"the query"}')
    return folder


def lines_of(folder: Path, number: int) -> list[str]:
    return (folder / "offsets" / str(number)).read_text().split("\n")


def a_batch(start: int, until: int, run: str = RUN) -> PlannedBatch:
    planned = PlannedRange(OffsetRange("orders", 0, start, until), topic_id=ID)
    return PlannedBatch(GATE, run, (planned,), "rate", "localhost:9092")


THREE = {5: [ours(10)], 6: [ours(20)], 7: [ours(35, begins=25)]}


# The way back


def test_what_is_not_of_headrace_is_copied_as_it_is(tmp_path: Path) -> None:
    native = '{"clicks":{"0":3}}'
    path = a_checkpoint(
        tmp_path / "checkpoint",
        {1: [OTHER, ours(10), native, "-"], 2: [OTHER, ours(20), native, "-"]},
    )
    to = tmp_path / "not there yet" / "copy"
    export(Checkpoint.read(f"file:{path}"), to, rerun=False)
    assert lines_of(to, 2) == ["v1", BATCH, OTHER, '{"orders":{"0":20}}', native, "-"]
    assert (to / "metadata").read_bytes() == (path / "metadata").read_bytes()
    assert sorted(each.name for each in (to / "commits").iterdir()) == ["1", "2"]
    assert list((to / "offsets").glob(".*")) == [], "sums of what is not there any more"
    assert sorted(each.name for each in to.parent.iterdir()) == ["copy"]


def test_the_names_of_sources_are_kept(tmp_path: Path) -> None:
    path = a_checkpoint(tmp_path / "c", {1: [f"0:{ours(10)}", f"1:{OTHER}"]}, version="v2")
    export(Checkpoint.read(str(path)), tmp_path / "copy", rerun=False)
    assert lines_of(tmp_path / "copy", 1)[2:] == ['0:{"orders":{"0":10}}', f"1:{OTHER}"]


def test_a_batch_is_run_again_where_it_began(tmp_path: Path) -> None:
    checkpoint = Checkpoint.read(str(a_checkpoint(tmp_path / "checkpoint", THREE, [5, 6])))
    to = tmp_path / "copy"
    with pytest.raises(SourceError, match=r"Batch 7 of .* is planned but not committed, and its"):
        export(checkpoint, to, rerun=False)
    export(checkpoint, to, rerun=True)
    assert [lines_of(to, number)[2] for number in (6, 7)] == [
        '{"orders":{"0":25}}',
        '{"orders":{"0":35}}',
    ]


def test_the_first_batch_is_run_again_where_it_began(tmp_path: Path) -> None:
    lines = [OTHER, ours(20, begins=5)]
    checkpoint = Checkpoint.read(str(a_checkpoint(tmp_path / "checkpoint", {0: lines}, [])))
    export(checkpoint, tmp_path / "copy", rerun=True)
    first = (tmp_path / "copy" / "sources" / "1" / "0").read_bytes()
    assert first == b'\0v1\n{"orders":{"0":5}}'


@pytest.mark.parametrize(
    ("batches", "committed", "said"),
    [
        ({1: [OTHER]}, [1], "has no offset of a Headrace source; the native source can"),
        ({1: ['{"a":{"0":1},"@replay":"/f"}']}, [1], "runs failed batches again, not of"),
        (
            {1: [OTHER, json.dumps({"a": {"0": 1}, "@checkpoint": "r", "@ids": {"a": "0f" * 16}})]},
            [1],
            "Source 1 of the checkpoint .* reads the journal 'a', for which Spark has no native",
        ),
        ({7: [ours(10)]}, [], "Spark has deleted the batch before it, so"),
        ({1: ['{"a":{"0":"x"},"@checkpoint":"r"}']}, [1], "is not the offset of a Kafka source"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, batches: dict[int, list[str]], committed: list[int], said: str
) -> None:
    path = a_checkpoint(tmp_path / "checkpoint", batches, committed)
    with pytest.raises(SourceError, match=said):
        export(Checkpoint.read(str(path)), tmp_path / "copy", rerun=True)
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_nothing_is_written_over_and_a_query_that_runs_is_found(tmp_path: Path) -> None:
    path = a_checkpoint(tmp_path / "checkpoint", THREE)
    checkpoint = Checkpoint.read(str(path))
    with pytest.raises(SourceError, match="of --to is within the checkpoint"):
        export(checkpoint, path / "copy", rerun=False)
    with pytest.raises(SourceError, match="of --to exists already"):
        export(checkpoint, path, rerun=False)
    (path / "offsets" / "8").write_text("\n".join(["v1", BATCH, ours(40)]))
    with pytest.raises(SourceError, match="A query runs on the checkpoint"):
        export(checkpoint, tmp_path / "copy", rerun=False)
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="because it has no folder 'offsets'"):
        Checkpoint.read(str(tmp_path))
    with pytest.raises(SourceError, match="is not in a folder of this machine"):
        Checkpoint.read("s3://bucket/checkpoint")
    with pytest.raises(SourceError, match="a query that has planned a batch"):
        Checkpoint.read(str(a_checkpoint(tmp_path / "empty", {})))
    path = a_checkpoint(tmp_path / "newer", {0: [ours(1)]}, version="v9")
    with pytest.raises(SourceError, match="it begins with 'v9'; known is v1 or v2"):
        Checkpoint.read(str(path))


# Compared with a ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return gated_ledger(f"sqlite:///{tmp_path}/headrace.db", GATE)


def processed(ledger: Ledger, *bounds: tuple[int, int]) -> None:
    succeed(ledger, *(a_batch(start, until) for start, until in bounds))


def compared(ledger: Ledger, path: Path) -> Comparison:
    return compare_with_checkpoint(ledger, GATE, str(path), ledger.history.checkpoints(GATE))


def test_what_is_in_both_is_told(ledger: Ledger, tmp_path: Path) -> None:
    path = a_checkpoint(tmp_path / "checkpoint", THREE)
    processed(ledger, (0, 10), (10, 20), (25, 35))
    found = compared(ledger, path)
    assert (found.findings, found.contradictions) == ((), ())
    assert found.notes[0].startswith("Batches 6 to 7 of the checkpoint ")
    ledger.history.prune(2 * 10**12)
    assert compared(ledger, path) == found, "history may be pruned"


def test_what_is_committed_and_not_in_the_ledger_is_missing(ledger: Ledger, tmp_path: Path) -> None:
    processed(ledger, (0, 10), (10, 20))
    found = compared(ledger, a_checkpoint(tmp_path / "checkpoint", THREE))
    (missing,) = found.findings
    assert (missing.kind, missing.offsets) == (
        FindingKind.MISSING,
        OffsetRange("orders", 0, 25, 35),
    )
    assert missing.batch_key == a_batch(25, 35).batch_key


@given(st.lists(st.sampled_from(["known", "restored", "lost", "unknown"]), max_size=8))
def test_what_a_restored_ledger_lacks_is_compared_by_offsets(fates: list[str]) -> None:
    """One dead batch, whose ranges are no batch's own, stands for all that is restored."""
    ranges = [OffsetRange("orders", 0, 10 * n, 10 * n + 10) for n in range(1, len(fates) + 1)]

    def of(fate: str) -> list[OffsetRange]:
        return [each for each, own in zip(ranges, fates, strict=True) if own == fate]

    with tempfile.TemporaryDirectory() as folder:
        ledger = gated_ledger(f"sqlite:///{folder}/headrace.db", GATE)
        batches = {number: [ours(each.until)] for number, each in enumerate(ranges, 1)}
        path = a_checkpoint(Path(folder) / "checkpoint", {0: [ours(10)], **batches})
        processed(ledger, (0, 10), *((each.start, each.until) for each in of("known")))
        ledger.history.record_losses(GATE, of("lost"), {"orders": ID})
        add_unknown(ledger, merge(of("restored")).get(TopicPartition("orders", 0), ()))
        assert [each.offsets for each in compared(ledger, path).findings] == of("unknown")
        ledger.close()


def add_unknown(ledger: Ledger, ranges: Sequence[OffsetRange]) -> None:
    """Add the dead batch for these ranges, as the query that has the gate does."""
    if ranges:
        claim = GateClaim(GATE, "a query", None, None, "a test", 1_000, "kafka", "pid")
        ledger.gates.claim(claim, 60_000)
        planned = tuple(PlannedRange(each, topic_id=ID) for each in ranges)
        batch = PlannedBatch(GATE, RUN, planned, "unknown", "localhost:9092")
        ledger.batches.add_unknown(batch, unknown_outcome(ranges), "a query")


def test_no_attempt_is_counted_of_a_batch_that_nobody_knows(ledger: Ledger) -> None:
    processed(ledger, (0, 10))
    add_unknown(ledger, [OffsetRange("orders", 0, 10, 30)])
    newest = ledger.batches.newest(GATE, 1)[0]
    assert (newest.status, newest.attempts, newest.backfills) == (Status.DEAD, 0, 0)
    counts = ledger.moments.counts([(GATE, 0, 0)])[GATE, False]
    retries = {status: sums[3] for (status, _, _), sums in counts.items()}
    assert retries == {"success": 0, "dead": 0}


def test_what_is_planned_and_not_begun_is_no_defect(ledger: Ledger, tmp_path: Path) -> None:
    processed(ledger, (0, 10), (10, 20))
    found = compared(ledger, a_checkpoint(tmp_path / "checkpoint", THREE, [5, 6]))
    assert (found.findings, found.contradictions) == ((), ())
    assert "Batch 7 of the checkpoint is planned but not begun" in found.notes[1]


def test_where_the_ledger_has_gone_on_the_checkpoint_is_an_older_copy(
    ledger: Ledger, tmp_path: Path
) -> None:
    processed(ledger, (0, 10), (10, 20), (25, 35), (35, 60))
    found = compared(ledger, a_checkpoint(tmp_path / "checkpoint", THREE))
    assert found.findings == ()
    (said,) = found.contradictions
    assert said.startswith("The ledger has a batch of orders-0 [35, 60), which the checkpoint has")


def test_a_checkpoint_that_a_gate_has_left_is_told(ledger: Ledger, tmp_path: Path) -> None:
    processed(ledger, (0, 10), (10, 20), (25, 35))
    ledger.batches.begin(a_batch(0, 99, run="another"))
    found = compared(ledger, a_checkpoint(tmp_path / "checkpoint", THREE))
    assert (found.findings, found.contradictions) == ((), ())
    assert "belongs to another checkpoint, another" in found.notes[1]


def test_a_checkpoint_of_no_gate_of_the_ledger_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint.read(str(a_checkpoint(tmp_path / "checkpoint", THREE)))
    refuse_a_stranger(checkpoint, ["clicks", GATE])
    with pytest.raises(OptionError, match=r"gate that is verified \(clicks\); its gates: or"):
        refuse_a_stranger(checkpoint, ["clicks"])


# Compared with the log


class Written:
    """A log of one topic, of which so much is known."""

    name = "Kafka"

    def __init__(self, topic_id: str, bounds: Mapping[int, tuple[int, int]]) -> None:
        self._topic = Topic(topic_id, tuple(bounds))
        self._bounds = {TopicPartition("orders", number): each for number, each in bounds.items()}

    def topics(self) -> Mapping[str, Topic]:
        return {"orders": self._topic}

    def bounds(self, partitions: Sequence[TopicPartition]) -> Any:
        return (
            {tp: self._bounds[tp][0] for tp in partitions},
            {tp: self._bounds[tp][1] for tp in partitions},
        )

    def close(self) -> None:
        """Nothing is held."""


def in_log(ledger: Ledger, topic_id: str, bounds: Mapping[int, tuple[int, int]]) -> Comparison:
    log = cast("Log", Written(topic_id, bounds))
    return compare_with_log(ledger, GATE, ledger.history.checkpoints(GATE), lambda _: log)


def test_the_log_says_what_it_has_more_and_what_it_never_had(ledger: Ledger) -> None:
    assert in_log(ledger, ID, {}) == Comparison(), "nothing was read yet"
    ledger.batches.begin(a_batch(10, 20))
    ledger.batches.begin(a_batch(20, 30, run="another"))
    assert in_log(ledger, ID, {0: (10, 30)}) == Comparison()
    assert in_log(ledger, ID, {0: (25, 30)}) == Comparison(), "retention"
    assert in_log(ledger, ID, {0: (4, 35), 1: (2, 3)}).notes == (
        "Kafka has orders-0 [4, 10), which lies before all planned offsets.",
        "Kafka has orders-0 [30, 35), which is not planned yet.",
        "Kafka has orders-1 [2, 3), and no batch has read any of that partition yet.",
    )
    (said,) = in_log(ledger, ID, {0: (0, 25)}).contradictions
    assert said.startswith("Kafka has orders-0 up to 25, and the ledger has batches of orders-0 [1")
    (said,) = in_log(ledger, ID, {1: (0, 0)}).contradictions
    assert said == "Kafka has no orders-0, and the ledger has batches of orders-0 [10, 30)."
    recreated = in_log(ledger, "another id", {0: (0, 5)})
    assert recreated.contradictions == ()
    assert recreated.notes == (
        "Kafka has orders-0 [0, 5), and no batch has read any of that partition yet.",
    )


def test_what_was_seen_of_a_topic_that_is_gone_and_not_counted_is_a_contradiction(
    ledger: Ledger,
) -> None:
    batch = a_batch(10, 20)
    (planned,) = batch.ranges
    ledger.batches.begin(replace(batch, ranges=(replace(planned, latest=50),)))
    (said,) = in_log(ledger, "another id", {0: (0, 5)}).contradictions
    assert "no batch has read orders-0 [20, 50) and perhaps more" in said
    ledger.history.record_losses(GATE, [OffsetRange("orders", 0, 20, 50)], {"orders": ID})
    assert in_log(ledger, "another id", {0: (0, 5)}).contradictions == ()


# Files that were not written to their end


def whole_file(version: str) -> bytes:
    name = "0:" if version == "v2" else ""
    return "\n".join([version, BATCH, f"{name}{ours(20)}"]).encode()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_file_of_offsets_that_is_cut_anywhere_is_told_to_be_cut(
    ledger: Ledger, tmp_path: Path, version: str
) -> None:
    """At each byte: it is never said to be of a newer form, of no gate, or of another source."""
    path = a_checkpoint(tmp_path / "c", {5: [ours(10)]}, version="v1")
    file = path / "offsets" / "6"
    content = whole_file(version)
    for length in range(len(content)):
        file.write_bytes(content[:length])
        for read in (
            lambda: Checkpoint.read(str(path)),
            lambda: compare_with_checkpoint(
                ledger, GATE, str(path), ledger.history.checkpoints(GATE)
            ),
        ):
            with pytest.raises(SourceError) as raised:
                read()
            said = str(raised.value)
            assert f"The checkpoint's file {file} is incomplete" in said, (length, said)
            assert "restore it from a copy" in said
            assert "newer" not in said
    for begin in range(len(content)):  # as a power failure leaves it, at each byte
        file.write_bytes(content[:begin] + b"\0" * 9 + content[begin + 9 :])
        with pytest.raises(SourceError, match="is incomplete"):
            Checkpoint.read(str(path))
    file.write_bytes(content)
    assert Checkpoint.read(str(path)).newest == 6


def test_a_file_of_nul_bytes_is_not_whole(tmp_path: Path) -> None:
    path = a_checkpoint(tmp_path / "c", {5: [ours(10)]})
    file = path / "offsets" / "5"
    file.write_bytes(b"\0" * 200)
    with pytest.raises(SourceError, match="is incomplete, for example after a full disk"):
        Checkpoint.read(str(path))


def test_a_file_that_is_cut_between_two_sources_is_told_to_be_cut(tmp_path: Path) -> None:
    path = a_checkpoint(tmp_path / "c", {5: [OTHER, ours(10)], 6: [OTHER]})
    with pytest.raises(SourceError, match="offsets/6 is incomplete"):
        Checkpoint.read(str(path))


def test_a_file_of_another_version_is_not_told_to_be_cut(tmp_path: Path) -> None:
    path = a_checkpoint(tmp_path / "c", {5: [ours(10)]}, version="v3")
    with pytest.raises(SourceError) as raised:
        Checkpoint.read(str(path))
    assert "it begins with 'v3'; known is v1 or v2" in str(raised.value)
    assert "is incomplete" not in str(raised.value)


@pytest.mark.parametrize("line", ["-", OTHER, "an offset of a source of somebody's"])
def test_what_another_source_wrote_is_not_told_to_be_cut(tmp_path: Path, line: str) -> None:
    path = a_checkpoint(tmp_path / "c", {5: [line, ours(10)]})
    assert Checkpoint.read(str(path)).newest == 5
