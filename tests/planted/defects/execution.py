"""Defects of batches, backfills, flows and the test harness."""

from typing import Final

from tests.planted.plant import Planted

DEFECTS: Final = (
    Planted(
        "a batch that isolation helped through, and that teaches the law",
        "execution/listener.py",
        "teaches = ended.went_through and (present.records > 0 or not report.batch)",
        "teaches = present.records > 0 or not report.batch",
        "tests/execution/test_listener.py",
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
    Planted(
        "an empty batch that counts as a proof that the sink works",
        "execution/handler_health.py",
        "        if self._asking and (is_dense or _has_records(df)):\n",
        "        if self._asking:\n",
        "tests/execution/test_handler_health.py",
    ),
    Planted(
        "a lease that is renewed after seconds, for milliseconds",
        "execution/batch_leases.py",
        "while not self._done.wait(self.lease_ms / _RENEWALS / 1000):",
        "while not self._done.wait(self.lease_ms / _RENEWALS):",
        "tests/execution/test_batch_leases.py",
    ),
    Planted(
        "a batch that may be in its sink, and is split into other keys",
        "execution/executor.py",
        'if blameless is None and self._policy.last == "isolate" and not self._is_unknown(batch):',
        'if blameless is None and self._policy.last == "isolate":',
        "tests/execution/test_failures.py tests/execution/test_isolator.py "
        "tests/execution/test_endings.py",
    ),
    Planted(
        "a backoff of retries that is never applied",
        "execution/policy.py",
        "return replace(after, retries=n, backoff=waits)",
        "return replace(after, retries=n)",
        "tests/execution/test_policy.py tests/execution/test_failures.py",
    ),
    Planted(
        "an error after a commit that is swallowed",
        "execution/executor.py",
        "            self._ledger.batches.keep_error(batch.schedule_id, error)\n",
        "",
        "tests/execution/test_transaction.py",
    ),
    Planted(
        "a half of a batch that is one offset short",
        "backfill/splitting.py",
        "before.append(replace(each, offsets=replace(offsets, until=cut)))",
        "before.append(replace(each, offsets=replace(offsets, until=max(cut - 1, offsets.start))))",
        "tests/backfill/test_splitting.py",
    ),
    Planted(
        "a budget that earns in milliseconds what it should in seconds",
        "backfill/budget.py",
        "earned = spare_per_s * max(0, now_ms - self.time_ms) / 1000",
        "earned = spare_per_s * max(0, now_ms - self.time_ms)",
        "tests/backfill/test_budget.py",
    ),
    Planted(
        "a schedule whose second run is followed by one without a pause",
        "backfill/schedule.py",
        "return started_ms if last_ms is None else last_ms + self.interval_ms",
        "return started_ms if last_ms is None else started_ms + self.interval_ms",
        "tests/backfill/test_schedule.py",
    ),
    Planted(
        "a batch with an unknown outcome that a backfill splits into other keys",
        "backfill/scheduler.py",
        "if batch.planned_records > allowed and not (batch.outcome_unknown or batch.backfills):",
        "if batch.planned_records > allowed and not batch.backfills:",
        "tests/backfill/test_splitting.py",
    ),
    Planted(
        "a backfill that does not say that its outcome is unknown",
        "backfill/scheduler.py",
        "                outcome_unknown=self._stopped() or ended,\n",
        "",
        "tests/backfill/test_one_batch.py tests/backfill/test_scheduler.py",
    ),
    Planted(
        "a signal that is delivered long after its lease",
        "flow/signals/stage_signals.py",
        "if (now_s - queued.queued_s) * 1000 >= queued.item.lease_ms:",
        "if now_s - queued.queued_s >= queued.item.lease_ms:",
        "tests/flow/test_stage_signals.py tests/flow/test_signals.py",
    ),
    Planted(
        "a signal of a stage that is not downstream, and is believed",
        "flow/signals/stage_signals.py",
        "        if found.stage not in self._downstream:\n"
        '            raise OptionError("It is no stage directly after this one.")\n',
        "",
        "tests/flow/test_stage_signals.py tests/flow/test_signals.py",
    ),
    Planted(
        "a throttled stage that is called the bottleneck",
        "flow/signals/codec.py",
        "return sorted(throttling & free)",
        "return sorted(throttling)",
        "tests/flow/test_codec.py",
    ),
    Planted(
        "a stage that has ended and leaves its state in the ledger",
        "flow/signals/ledger_transport.py",
        "            self._state.withdraw()\n",
        "            pass\n",
        "tests/flow/test_signals_ledger.py tests/flow/test_signals.py",
    ),
    Planted(
        "a batch that a child of its wrote into a journal, and that is written again",
        "flow/channels/journal_channel.py",
        "is_written = any(key in writer.written for key in ancestry(batch_key, ledger))",
        "is_written = batch_key in writer.written",
        "tests/flow/test_channel_journal.py",
    ),
    Planted(
        "a log in memory that passes over lost records",
        "testing/memory.py",
        "            if missing.count:\n",
        "            if missing.count and not there.count:\n",
        "tests/testing/test_memory.py",
    ),
    Planted(
        "a crash after a step that did not happen",
        "testing/crashes.py",
        '        if done or step in _SILENT:\n            passed(f"after {step}", arguments)\n',
        '        passed(f"after {step}", arguments)\n',
        "tests/testing/test_crashes.py",
    ),
    Planted(
        "a handler that has worked, and whose query a few bad records stop",
        "execution/handler_health.py",
        'if self._has_worked or why.error_class.rpartition(".")[2] not in _PROGRAM:',
        'if why.error_class.rpartition(".")[2] not in _PROGRAM:',
        "tests/execution/test_isolator.py",
    ),
    Planted(
        "a killed program's gate that its planner gives back",
        "source/gate_ledger.py",
        "if self._claim.driver is not None and is_gone(self._claim.driver):",
        "if self._claim.driver is None:",
        "tests/source/test_gate_ledger.py",
    ),
)
