"""Defects of the ledger and the journal."""

from typing import Final

from tests.planted.plant import Planted

DEFECTS: Final = (
    Planted(
        "a lease that is not renewed",
        "ledger/transitions.py",
        "    .values(lease_until_ms=LEASE_END)",
        "    .values(lease_until_ms=batch_table.c.lease_until_ms)",
        "tests/ledger/test_leases.py tests/ledger/test_backfills.py",
    ),
    Planted(
        "a backfill that takes a batch from another whose lease is not over",
        "ledger/transitions.py",
        "        and_(batch_table.c.status == BACKFILL_FAILED.before, _LEASE_HAS_RUN_OUT),",
        "        batch_table.c.status == BACKFILL_FAILED.before,",
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
        "a begun batch that a killed database server may lose",
        "ledger/batches.py",
        "self._database.alone(lambda one: at_once.begin(one, batch, row, count | created))",
        "self._database.alone(lambda one: at_once.begin(one, batch, row, count | created),"
        " durable=False)",
        "tests/ledger/test_server_kills.py",
    ),
    Planted(
        "a batch begun from what the ledger had before another one was begun",
        "ledger/at_once.py",
        "batch_rows.COUNT_BEGIN.where(gate.c.begins == as_it_was)",
        "batch_rows.COUNT_BEGIN.where(true())",
        "tests/ledger/test_at_once.py",
    ),
    Planted(
        "a report whose repetition is kept a second time",
        "ledger/rates.py",
        'gate.c.reported.is_distinct_from(bindparam("batch", type_=Text))',
        "gate.c.name.is_not(None)",
        "tests/ledger/test_at_once.py",
    ),
    Planted(
        "a batch ended by the engine's report that a killed database server may lose",
        "ledger/rates.py",
        "                make_durable(connection)\n",
        "                pass\n",
        "tests/ledger/test_server_kills.py",
    ),
    Planted(
        "a proof that sees no offsets left out between two runs",
        "ledger/proof.py",
        "(FindingKind.SKIPPED, so_far.gap_before(run.offsets)),",
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
        "a password among the options of a ledger's URL that is shown",
        "ledger/connection.py",
        'hidden = {name: "***" if _is_secret(name) else v for name, v in parsed.query.items()}',
        "hidden = dict(parsed.query)",
        "tests/ledger/test_urls.py",
    ),
    Planted(
        "a dead letter that two senders can claim",
        "ledger/dead_letters.py",
        "            dead_letter.c.claimed_until_ms <= NowMs(),\n",
        "            dead_letter.c.claimed_until_ms >= NowMs(),\n",
        "tests/ledger/test_repairs.py",
    ),
    Planted(
        "a claim of dead letters that is not released",
        "ledger/dead_letters.py",
        "            self._database.write(release)\n",
        "            pass\n",
        "tests/ledger/test_repairs.py",
    ),
    Planted(
        "a wait for the database whose milliseconds are taken for seconds",
        "ledger/connection.py",
        "return min(_BACKOFF.wait_ms(tries) / 1000, retry_timeout_s - waited_s)",
        "return min(_BACKOFF.wait_ms(tries), retry_timeout_s - waited_s)",
        "tests/ledger/test_outages.py",
    ),
    Planted(
        "pruning that removes the newest batch of a gate",
        "ledger/pruning.py",
        "    .where(batch_table.c.batch_key != _newest_batch)\n",
        "",
        "tests/ledger/test_history.py",
    ),
    Planted(
        "a retry of a batch that is another process's",
        "ledger/transitions.py",
        '_update_by(RUN_AGAIN, _OWNED, start_time_ms=bindparam("now_ms"), **_LEASED)',
        '_update_by(RUN_AGAIN, start_time_ms=bindparam("now_ms"), **_LEASED)',
        "tests/ledger/test_leases.py tests/ledger/test_batches.py tests/ledger/test_transitions.py",
    ),
    Planted(
        "rejected records that are left out of the success that keeps them",
        "ledger/batches.py",
        "            insert_letters(self._database, connection, batch_key, "
        "rejected(), self._clock())\n",
        "",
        "tests/ledger/test_lending.py tests/execution/test_rejections.py",
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
        "pruning that removes blocks which the slowest gate has still to read",
        "journal/retention.py",
        "least = min(needs, key=lambda each: each.until, default=None)",
        "least = max(needs, key=lambda each: each.until, default=None)",
        "tests/journal/test_retention.py",
    ),
    Planted(
        "a block of another writer that is taken for one's own",
        "journal/lane_writer.py",
        "            if header.writer != self._writer:\n"
        "                raise self._other_writer()\n",
        "",
        "tests/journal/test_lane_writer.py tests/journal/test_object_store.py",
    ),
    Planted(
        "blocks of a pack that a crash has left, which count beside it",
        "journal/lane_files.py",
        "np.union1d(blocks[~left], others_than_blocks)",
        "np.union1d(blocks, others_than_blocks)",
        "tests/journal/test_packs.py",
    ),
    Planted(
        "pruning that does not write down where the lane begins",
        "journal/journal.py",
        "            if start > index.start:\n",
        "            if start < index.start:\n",
        "tests/journal/test_retention.py tests/journal/test_journal.py",
    ),
    Planted(
        "a lane that two processes can write",
        "journal/storage/local.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "tests/journal/test_lane_writer.py",
    ),
    Planted(
        "a block that loses its name before its new one is durable",
        "journal/storage/local.py",
        "        self._disk.sync_folder(target.parent)\n"
        "        self._disk.unlink(source)\n"
        "        self._disk.sync_folder(source.parent)\n",
        "        self._disk.unlink(source)\n"
        "        self._disk.sync_folder(source.parent)\n"
        "        self._disk.sync_folder(target.parent)\n",
        "tests/journal/test_local_storage.py",
    ),
    Planted(
        "skipped records that nobody has accepted and that count as accepted",
        "ledger/proof.py",
        "for why in [piece.accepted or (row.why if inside else None)]",
        "for why in [row.why]",
        "tests/ledger/test_missed.py",
    ),
    Planted(
        "a proof that sees no overlap of two batches",
        "ledger/proof.py",
        "if reached is not None and reached != offsets.start:",
        "if reached is not None and reached < offsets.start:",
        "tests/ledger/test_proof.py",
    ),
    Planted(
        "a proof that does not see that the newest batch is gone",
        "ledger/proof.py",
        "for rest in run.offsets.subtract(cover):",
        "for rest in run.offsets.subtract(cover)[:0]:",
        "tests/ledger/test_proof.py",
    ),
)
