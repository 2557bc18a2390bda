"""The judge of the crash tests finds every defect that is planted."""

from dataclasses import replace

import pytest
from tests.recovery.evidence import Evidence, Run, problems, values

from headrace.core.ranges import OffsetRange, TopicPartition

BATCHES = {
    "a": (OffsetRange("t", 0, 0, 3), OffsetRange("t", 1, 0, 2)),
    "b": (OffsetRange("t", 0, 3, 5),),
    "c": (OffsetRange("t", 0, 5, 6), OffsetRange("t", 1, 2, 4)),
}
HALVES = ((OffsetRange("t", 0, 3, 4),), (OffsetRange("t", 0, 4, 5),))
RUNS = (
    Run("a", 0, 1, BATCHES["a"], sequence=1),
    Run("b", 1, 1, BATCHES["b"], sequence=2),
    Run("b", 1, 3, BATCHES["b"], sequence=3),
    Run("c", 2, 1, BATCHES["c"], sequence=4),
)
SOUND = Evidence(
    produced={TopicPartition("t", 0): 6, TopicPartition("t", 1): 4},
    arrived={key: tuple(values(ranges)) for key, ranges in BATCHES.items()},
    runs=RUNS,
    planned=BATCHES,
)


def without(batch: str) -> dict[str, tuple[OffsetRange, ...]]:
    return {key: ranges for key, ranges in BATCHES.items() if key != batch}


def test_nothing_is_wrong_where_each_record_arrived_once() -> None:
    assert problems(SOUND) == []


DEFECTS = {
    "a batch's file is gone": (
        replace(SOUND, arrived={"a": SOUND.arrived["a"], "c": SOUND.arrived["c"]}),
        ["record 0/3 is missing", "record 0/4 is missing"],
    ),
    "a record is gone": (
        replace(SOUND, arrived={**SOUND.arrived, "b": ("0/3",)}),
        ["record 0/4 is missing", "batch b has other records than its ranges say"],
    ),
    "a record is there twice": (
        replace(SOUND, arrived={**SOUND.arrived, "b": ("0/3", "0/4", "0/2")}),
        ["record 0/2 arrived 2 times", "batch b has other records than its ranges say"],
    ),
    "a batch is there under a second key": (
        replace(SOUND, arrived={**SOUND.arrived, "d": SOUND.arrived["b"]}),
        [
            "record 0/3 arrived 2 times",
            "record 0/4 arrived 2 times",
            "batch d has other records than its ranges say",
        ],
    ),
    "a record comes from nowhere": (
        replace(SOUND, arrived={**SOUND.arrived, "b": ("0/3", "0/4", "7/0")}),
        ["record 7/0 was never produced", "batch b has other records than its ranges say"],
    ),
    "a range was dropped": (
        replace(SOUND, planned=without("b"), runs=(RUNS[0], RUNS[3])),
        [
            "t-0 [5, 6) does not begin at 3, where the range before it ends",
            "batch b has other records than its ranges say",
        ],
    ),
    "a partition was never read": (
        replace(SOUND, produced={**SOUND.produced, TopicPartition("t", 2): 1}),
        ["record 2/0 is missing", "the ranges of t-2 end at 0, not at 1"],
    ),
    "a range was planned twice": (
        replace(SOUND, planned={**BATCHES, "d": BATCHES["b"]}),
        ["t-0 [3, 5) does not begin at 5, where the range before it ends"],
    ),
    "a range grew when it ran again": (
        replace(
            SOUND, runs=(*RUNS[:2], replace(RUNS[2], ranges=(OffsetRange("t", 0, 3, 6),)), RUNS[3])
        ),
        ["batch b ran with different ranges", "batch b ran with other ranges than the ledger has"],
    ),
    "a batch ran again under another key": (
        replace(SOUND, runs=(*RUNS[:2], Run("c", 1, 3, BATCHES["c"], sequence=3), RUNS[3])),
        [
            "Spark's batch 1 ran under 2 keys",
            "key c was given to several of Spark's batches",
            "the attempts at batch c were counted [3, 1]",
        ],
    ),
    "an attempt was not counted": (
        replace(SOUND, runs=(*RUNS[:2], replace(RUNS[1], sequence=3), RUNS[3])),
        ["the attempts at batch b were counted [1, 1]"],
    ),
    "a run was given a number that is not above the one before": (
        replace(SOUND, runs=(*RUNS[:3], replace(RUNS[3], sequence=3))),
        ["run 3 of batch c came after run 3"],
    ),
    "a live batch was not told Spark's number": (
        replace(SOUND, runs=(*RUNS[:3], replace(RUNS[3], batch_id=None))),
        ["batch c (live) was given the number None of Spark's"],
    ),
    "a backfill was told a number of Spark's": (
        replace(SOUND, runs=(*RUNS, replace(RUNS[3], kind="backfill", attempt=2, sequence=5))),
        ["batch c (backfill) was given the number 2 of Spark's"],
    ),
    "a failure was swallowed": (
        replace(SOUND, runs=(*RUNS[:3], replace(RUNS[3], raised=True))),
        ["batch c raised, and nothing was done about it"],
    ),
    "a batch that was divided is there as well as its parts": (
        replace(
            SOUND,
            planned={**BATCHES, "b.0": HALVES[0], "b.1": HALVES[1]},
            arrived={**SOUND.arrived, "b.0": ("0/3",), "b.1": ("0/4",)},
        ),
        ["record 0/3 arrived 2 times", "record 0/4 arrived 2 times"],
    ),
    "a part was lost": (
        replace(
            SOUND,
            planned={**BATCHES, "b.0": HALVES[0], "b.1": HALVES[1]},
            arrived={"a": SOUND.arrived["a"], "b.0": ("0/3",), "c": SOUND.arrived["c"]},
        ),
        ["record 0/4 is missing"],
    ),
    "a dead letter arrived too": (
        replace(SOUND, letters=("0/3",), poison=frozenset({"0/3"})),
        ["record 0/3 arrived 2 times"],
    ),
    "what could be processed is a dead letter": (
        replace(
            SOUND,
            planned={**BATCHES, "b.0": HALVES[0], "b.1": HALVES[1]},
            arrived={"a": SOUND.arrived["a"], "b.1": ("0/4",), "c": SOUND.arrived["c"]},
            letters=("0/3",),
        ),
        ["record 0/3 is a dead letter without need"],
    ),
    "the ledger does not prove it": (
        replace(SOUND, unproven=("gap t-0 [3, 5)",)),
        ["the ledger's proof finds: gap t-0 [3, 5)"],
    ),
    "a batch was never settled": (
        replace(SOUND, unsettled=frozenset({"c"})),
        ["batch c is not settled"],
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str) -> None:
    evidence, expected = DEFECTS[defect]
    assert sorted(problems(evidence)) == sorted(expected)
