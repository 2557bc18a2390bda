"""Defects that are planted into the core paths, each of which the tests beside it find.

A suite can be green because it looks away. Each row below is a change of one line that loses,
doubles or mislabels records, or breaks a law; the long form (``make soak``) plants it in a copy of
the source and runs the tests that must fail.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


@dataclass(frozen=True)
class Planted:
    """A line of a module, what stands there instead, and the tests that find it."""

    what: str
    module: str
    line: str
    instead: str
    tests: str


PLANTED = [
    Planted(
        "a range that is one offset short after a split",
        "core/ranges.py",
        "return self._between(self.start, cut), self._between(cut, self.until)",
        "return self._between(self.start, cut), self._between(cut + 1, self.until)",
        "tests/core",
    ),
    Planted(
        "a partition's share of the rate that does not follow its lag",
        "control/rate_law.py",
        "[lag / total_lag * rate.per_s for lag in lags]",
        "[rate.per_s / len(lags) for lag in lags]",
        "tests/control/test_rate_law.py",
    ),
    Planted(
        "an integral term of the wrong sign",
        "control/pid.py",
        "self._latest_rate - by_proportional - by_integral - by_derivative",
        "self._latest_rate - by_proportional + by_integral - by_derivative",
        "tests/control",
    ),
    Planted(
        "a bucket that collects tokens without bound",
        "control/token_bucket.py",
        "self._level = min(self._level + gained, self.capacity)",
        "self._level += gained",
        "tests/control/test_token_bucket.py",
    ),
    Planted(
        "a rate limit that outlives its lease",
        "control/upstream_throttle.py",
        "if state.level > 0 and state.origin_per_s is not None and time_ms < state.until_ms",
        "if state.level > 0 and state.origin_per_s is not None",
        "tests/control",
    ),
    Planted(
        "a rate that is measured from one chunk to the next, however rarely it is looked at",
        "control/chunk_rate.py",
        "if lasted_ms >= max(least_ms, 1) and is_exact:",
        "if lasted_ms >= max(least_ms, 1):",
        "tests/control/test_chunk_rate.py",
    ),
    Planted(
        "a batch that is planned past the records there are",
        "control/plan.py",
        "messages if messages < lag else lag",
        "messages",
        "tests/control",
    ),
    Planted(
        "a lease that is not renewed",
        "ledger/transitions.py",
        "    .values(lease_until_ms=LEASE_END)",
        "    .values(lease_until_ms=control.c.lease_until_ms)",
        "tests/ledger/test_leases.py tests/ledger/test_backfills.py",
    ),
    Planted(
        "a backfill that takes a batch from another whose lease is not over",
        "ledger/transitions.py",
        "        and_(control.c.status == BACKFILL_FAILED.before, _LEASE_HAS_RUN_OUT),",
        "        control.c.status == BACKFILL_FAILED.before,",
        "tests/ledger/test_backfills.py tests/ledger/test_leases.py",
    ),
    Planted(
        "a batch that is begun again with other ranges than the ledger has",
        "ledger/batches.py",
        "if stored != {planned.offsets for planned in batch.ranges if planned.offsets.count}:",
        "if not stored:",
        "tests/ledger",
    ),
    Planted(
        "a proof that sees no offsets left out between two runs",
        "ledger/proof.py",
        "(FindingKind.SKIPPED, so_far.gap_before(span.offsets)),",
        "(FindingKind.SKIPPED, None),",
        "tests/ledger/test_proof.py",
    ),
    Planted(
        "pruning that removes batches which no backfill has run yet",
        "ledger/pruning.py",
        "    .where(CLOSED)\n",
        "",
        "tests/ledger/test_history.py tests/ledger/test_store_machine.py",
    ),
    Planted(
        "a block that is acknowledged before it is synced",
        "journal/storage/local.py",
        "            write_all(self._disk, descriptor, parts)\n"
        "            self._disk.sync(descriptor)\n",
        "            write_all(self._disk, descriptor, parts)\n",
        "tests/journal/test_crashes.py",
    ),
    Planted(
        "a block whose name is acknowledged before its folder is synced",
        "journal/storage/local.py",
        "        self._disk.sync_folder(self._final.parent)\n        return mark is not None",
        "        return mark is not None",
        "tests/journal/test_crashes.py",
    ),
    Planted(
        "records whose checksum nobody compares",
        "journal/block.py",
        "if _crc([payload]) != header.payload_crc:",
        "if payload is None:",
        "tests/journal/test_block.py",
    ),
    Planted(
        "a lane that was put back from an older copy and is read on",
        "journal/reading.py",
        "if 0 not in (after, now) and now != after:",
        "if after < 0:",
        "tests/journal/test_restored.py",
    ),
    Planted(
        "offsets that were declared lost and are passed over in silence",
        "journal/reading.py",
        "            if on_loss is not None and at < stop:",
        "            if on_loss is not None and at > stop:",
        "tests/journal",
    ),
    Planted(
        "message ids of which one can be another's with its number",
        "receivers/deduplicator.py",
        '_SEPARATOR: Final = "\\0"',
        '_SEPARATOR: Final = ":"',
        "tests/receivers/test_deduplicator.py",
    ),
    Planted(
        "a delivery that is acknowledged while what it repeats is not durable",
        "receivers/deduplicator.py",
        "            await asyncio.wait(self._awaited)",
        "            await asyncio.sleep(0)",
        "tests/receivers/test_deduplicator.py tests/receivers/test_intake.py",
    ),
    Planted(
        "a read that keeps the records of attempts which were aborted",
        "kafka/range_reader.py",
        "            inside &= np.fromiter(map(self._is_wanted, messages), np.bool_, count)",
        "            inside &= True",
        "tests/kafka/test_range_reader.py tests/kafka/test_attempts.py",
    ),
    Planted(
        "a read that begins one offset late",
        "kafka/range_reader.py",
        "inside = (offsets >= self._next[slots]) & (offsets < self._until[slots])",
        "inside = (offsets > self._next[slots]) & (offsets < self._until[slots])",
        "tests/kafka/test_range_reader.py",
    ),
    Planted(
        "a loss of a task that nobody writes down",
        "source/losses.py",
        "        if self.account is not None:",
        "        if self.account is not None and not missing.count:",
        "tests/source/test_losses.py",
    ),
    Planted(
        "a batch that isolation helped through, and that teaches the law",
        "execution/listener.py",
        "teaches = ended.went_through and (present.records > 0 or not report.batch)",
        "teaches = present.records > 0 or not report.batch",
        "tests/execution/test_listener.py",
    ),
    Planted(
        "a half of a batch that is one offset short",
        "backfill/splitting.py",
        "before.append(replace(each, offsets=replace(offsets, until=cut)))",
        "before.append(replace(each, offsets=replace(offsets, until=max(cut - 1, offsets.start))))",
        "tests/backfill/test_splitting.py",
    ),
    Planted(
        "a handler that is run once less than its policy says",
        "execution/executor.py",
        "for retry in range(1, self._policy.retries + 1):",
        "for retry in range(1, self._policy.retries):",
        "tests/execution/test_failures.py",
    ),
    Planted(
        "a password that goes into Spark's plan",
        "execution/spark_session.py",
        "        elif is_secret(name):",
        "        elif is_secret(name) and not value:",
        "tests/execution/test_registration.py",
    ),
]


def plant(defect: Planted, source: Path) -> None:
    """Change the line in a copy of the source."""
    module = source / "headrace" / defect.module
    text = module.read_text()
    assert text.count(defect.line) == 1, f"{defect.module} has the line {text.count(defect.line)}x"
    module.write_text(text.replace(defect.line, defect.instead))


@pytest.mark.parametrize("defect", PLANTED, ids=lambda each: each.what)
def test_each_defect_is_a_change_of_a_line_that_is_there_once(
    defect: Planted, tmp_path: Path
) -> None:
    module = Path("headrace") / defect.module
    (tmp_path / module).parent.mkdir(parents=True)
    shutil.copyfile(SOURCE / module, tmp_path / module)
    plant(defect, tmp_path)
    compile((tmp_path / module).read_text(), str(module), "exec")
    assert all((ROOT / each).exists() for each in defect.tests.split())


@pytest.mark.integration
@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("defect", PLANTED, ids=lambda each: each.what)
def test_the_tests_beside_it_find_the_defect(defect: Planted, tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    plant(defect, source)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not soak", *defect.tests.split()]
    environment = os.environ | {"PYTHONPATH": str(source), "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYTEST_CURRENT_TEST", None)
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stdout[-3000:]
    assert "failed" in run.stdout or "Timeout" in run.stdout  # where it goes on for ever
