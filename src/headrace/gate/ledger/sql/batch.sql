-- Batches: their plans, their owners and queries. The transitions between the states of a batch are
-- in transitions.py.

-- name: count_begin
-- Counts a request for a batch, once per call. It runs first in its transaction: the lock on the
-- gate's row makes the gate's next batch wait.
UPDATE gate SET begun = :batch, begins = begins + 1,
  query_checkpoint_id = CASE WHEN CAST(:query AS text) IS NULL THEN query_checkpoint_id
    ELSE CAST(:checkpoint_id AS text) END
WHERE name = :gate
  AND query_owner = :query  --? query
  AND NOT EXISTS (SELECT 1 FROM batch WHERE batch_key = :batch AND last_call = :call)

-- name: new
-- The created time is later than the gate's earlier batches', even if the clock was set back.
INSERT INTO batch (batch_key, gate, checkpoint_id, status, attempts, reason, planned_records,
  planned_bytes, lag, rate_per_s, last_call, created_time_ms)
SELECT :batch, :gate, :checkpoint_id, 'in_progress', 1, :reason, CAST(:planned_records AS bigint),
  CAST(:planned_bytes AS bigint), CAST(:lag AS bigint), CAST(:rate_per_s AS double precision), :call,
  CASE WHEN max(created_time_ms) >= :now_ms THEN max(created_time_ms) + 1
    ELSE CAST(:now_ms AS bigint) END
FROM batch WHERE gate = :gate
ON CONFLICT DO NOTHING RETURNING *

-- name: new_dead
-- Inserts a dead batch for planned batches whose rows are missing; their attempts are unknown.
INSERT INTO batch (batch_key, gate, checkpoint_id, status, attempts, reason, planned_records,
  planned_bytes, lag, rate_per_s, last_call, created_time_ms, end_time_ms,
  error_class, error_message, error_trace)
VALUES (:batch, :gate, :checkpoint_id, 'dead', 0, :reason, :planned_records,
  :planned_bytes, :lag, :rate_per_s, :call, :now_ms, :now_ms,
  :error_class, :error_message, :error_trace)
ON CONFLICT DO NOTHING

-- name: new_range
INSERT INTO batch_range (batch_key, topic, partition, start_offset, until_offset, bootstrap_servers,
  latest_offset, reason, topic_id)
VALUES (:batch_key, :topic, :partition, :start_offset, :until_offset, :bootstrap_servers,
  :latest_offset, :reason, :topic_id)

-- part: is_attachable
batch_key = :batch AND status = 'in_progress'
  AND (owner IS NULL OR owner = :by OR owner = :gone OR {expired})

-- name: next_sequence_of
-- Numbers the next run of the handler, for a batch that can be attached. This locks the gate's row,
-- and `attach` locks the batch's row afterwards; in another order, two transactions could deadlock.
UPDATE gate SET sequence = sequence + 1
WHERE name = (SELECT gate FROM batch WHERE {is_attachable})
RETURNING sequence

-- name: attach
-- Stores the engine's number and the owner of a batch; an expired lease does not prevent this.
UPDATE batch SET query_batch_id = :number,
  start_time_ms = coalesce(CAST(:started_ms AS bigint), :now_ms),
  owner = :by, lease_until_ms = {now} + CAST(:lease_ms AS bigint)
WHERE {is_attachable}
RETURNING *

-- name: renew
UPDATE batch SET lease_until_ms = {now} + CAST(:lease_ms AS bigint)
WHERE batch_key = :batch AND owner = :by AND status IN ('in_progress', 'backfilling')

-- name: keep_progress
-- Keeps the status. The text replaces the earlier text, so a repeated call changes nothing more.
UPDATE batch SET progress = :progress, done_records = :done_records
WHERE batch_key = :batch AND owner = :by AND status IN ('in_progress', 'backfilling')

-- name: keep_error
-- Stores an error that was raised after the commit.
UPDATE batch SET error_class = :error_class, error_message = :error_message,
  error_trace = :error_trace
WHERE batch_key = :batch AND status = 'success'

-- name: leave_interrupted
-- Gives an error to interrupted batches that the next start of their query did not run.
UPDATE batch SET error_class = :error_class, error_message = :error_message
WHERE gate = :gate AND batch_key <> :but AND status = 'failed'
  AND coalesce(error_class, '') = :query_stopped

-- name: left_behind
-- Batches that no process runs, and batches that an earlier try of this call has resolved.
-- There is no ORDER BY: SQLite would read all batches in that order instead of these states' batches.
SELECT created_time_ms, batch_key FROM batch
WHERE gate = :gate AND batch_key <> :but AND status IN ('in_progress', 'failed')
  AND (status = 'failed' AND last_call = :call OR status = 'in_progress' AND (
    {expired} OR owner IS NULL AND created_time_ms < :before_ms))

-- name: open_of_others
-- Open batches of a gate's other checkpoints, without ORDER BY for the reason in `left_behind`.
SELECT * FROM batch WHERE gate = :gate AND checkpoint_id <> :checkpoint_id
  AND status IN ('in_progress', 'failed', 'backfilling')

-- name: batch
SELECT * FROM batch WHERE batch_key = :batch

-- name: locked_batch
-- Waits for the end of every transaction that has changed the row.
SELECT * FROM batch WHERE batch_key = :batch {locked}

-- name: planned_records
SELECT planned_records FROM batch WHERE batch_key = :batch

-- name: gate_of
SELECT gate FROM batch WHERE batch_key = :batch

-- name: servers
SELECT bootstrap_servers FROM batch_range WHERE batch_key = :batch LIMIT 1

-- name: ranges
SELECT topic, partition, start_offset, until_offset, latest_offset, reason, topic_id
FROM batch_range WHERE batch_key = :batch ORDER BY topic, partition, start_offset

-- name: with_prefix
SELECT * FROM batch WHERE batch_key >= :prefix AND batch_key < :above
ORDER BY batch_key LIMIT :limit

-- name: newest
-- The newest batches of a gate, in an order with an index: no index spans all gates or all states.
SELECT * FROM batch WHERE gate = :gate
  AND status = :status  --? status
  AND query_batch_id = :number  --? number
  AND created_time_ms >= :since_ms  --? since_ms
  AND created_time_ms < :until_ms  --? until_ms
ORDER BY created_time_ms DESC LIMIT :limit

-- name: newest_of_all
-- The newest batches of all gates: at most the limit of each gate, and the newest of these. CROSS
-- JOIN makes SQLite read the gates first.
SELECT batch.* FROM gate CROSS JOIN batch
WHERE batch.gate = gate.name AND batch.created_time_ms >= coalesce((SELECT newer.created_time_ms FROM batch AS newer
    WHERE newer.gate = gate.name
      AND newer.status = :status  --? status
      AND newer.created_time_ms < :until_ms  --? until_ms
    ORDER BY newer.created_time_ms DESC LIMIT 1 OFFSET :all_but_one), 0)
  AND batch.status = :status  --? status
  AND batch.created_time_ms >= :since_ms  --? since_ms
  AND batch.created_time_ms < :until_ms  --? until_ms
ORDER BY batch.created_time_ms DESC LIMIT :limit

-- name: spans
SELECT created_time_ms, end_time_ms FROM batch WHERE gate = :gate
ORDER BY created_time_ms DESC LIMIT :limit

-- name: claimable
-- Batches that a backfill could claim. An expired lease is a failed backfill that is not counted
-- yet. `waits` has the waits (ms) after 0, 1, 2 .. failures, as JSON; the last wait also applies to
-- more failures. An end in the future is ignored, because a clock was wrong.
SELECT * FROM (
  SELECT batch.*, backfills + CASE status WHEN 'failed' THEN 0 ELSE 1 END AS failures,
    CASE WHEN status = 'backfilling' AND lease_until_ms <= {now} THEN lease_until_ms
      ELSE coalesce(end_time_ms, start_time_ms, created_time_ms) END AS failed_ms
  FROM batch
  WHERE gate IN (SELECT name FROM gate
    WHERE name = :gate  --? gate
    )
    AND status IN ('failed', 'backfilling') AND (status = 'failed' OR {expired})
) AS open
WHERE true
  AND (retry_ms >= failed_ms  --? waits
  OR failed_ms + {item(:waits, CASE WHEN failures < :last THEN failures ELSE :last END)} <= :now_ms  --? waits
  OR failed_ms > :now_ms + {longest})  --? waits
ORDER BY created_time_ms, batch_key LIMIT :limit

-- name: unresolved
-- Batches that need attention: neither finished, nor dropped, nor run again by the next start.
SELECT * FROM batch
WHERE gate IN (SELECT name FROM gate
  WHERE name = :gate  --? gate
  )
  AND {unresolved}
  AND created_time_ms >= :since_ms  --? since_ms
  AND created_time_ms < :until_ms  --? until_ms
  AND (error_class = :error_class OR error_class LIKE :error_name ESCAPE '/')  --? error_class
ORDER BY created_time_ms, batch_key LIMIT :limit

-- name: bad
-- Records on which the handler raised; only the newest of very many.
SELECT dead_letter.batch_key, dead_letter.error_class, dead_letter.error_message
FROM dead_letter JOIN batch ON batch.batch_key = dead_letter.batch_key
WHERE batch.gate = :gate AND batch.created_time_ms >= :since_ms
  AND dead_letter.error_class NOT IN (:rejected, :bad_value)
ORDER BY dead_letter_id DESC LIMIT 1000
