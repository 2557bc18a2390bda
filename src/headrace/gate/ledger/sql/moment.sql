-- All gates at one moment, for status, pages and metrics: a few statements, however many gates there
-- are. CROSS JOIN makes SQLite read the gates first, and use each gate's index.

-- name: revision
-- Values that differ after every change of a gate.
SELECT gate.name, gate.lost_offsets, gate.begins, gate.begun, gate.reported, gate.interval_ms,
  gate.rate_per_s, gate.size_ceiling, gate.query_owner, gate.query_until_ms > {now} AS query_lives,
  gate.query_checkpoint, gate.ended_ms, gate.last_action, gate.sink_outage, batch.status,
  batch.last_call
FROM gate LEFT JOIN batch ON batch.batch_key = gate.begun

-- name: elsewhere
SELECT (SELECT max(seen_ms) FROM receiver) AS seen_ms,
  (SELECT max(written_ms) FROM stage_state) AS written_ms,
  (SELECT max(action_id) FROM action) AS acted

-- name: newest_batches
-- The newest `skip` + 1 batches of each gate, read from the gate's index.
SELECT batch.* FROM gate CROSS JOIN batch
WHERE batch.gate = gate.name
  AND gate.name IN :names  --? names
  AND batch.created_time_ms >= coalesce((SELECT earlier.created_time_ms FROM batch AS earlier
    WHERE earlier.gate = gate.name ORDER BY earlier.created_time_ms DESC LIMIT 1 OFFSET :skip), -1)
ORDER BY gate.name, batch.created_time_ms DESC

-- name: newest_samples
SELECT rate.gate, rate.time_ms, rate.rate_per_s, rate.records, rate.processing_delay_ms,
  rate.scheduling_delay_ms, rate.processing_rate_per_s, rate.proportional, rate.integral,
  rate.derivative, rate.query_batch_id, rate.batch_key
FROM gate CROSS JOIN rate
WHERE rate.gate = gate.name
  AND gate.name IN :names  --? names
  AND rate.time_ms >= coalesce((SELECT earlier.time_ms FROM rate AS earlier
    WHERE earlier.gate = gate.name ORDER BY earlier.time_ms DESC LIMIT 1 OFFSET :skip), -1)
ORDER BY gate.name, rate.time_ms DESC, rate.rate_id DESC

-- name: newest_ranges
SELECT gate.name, topic, partition, start_offset, until_offset, latest_offset, reason, topic_id
FROM gate JOIN batch_range ON batch_range.batch_key = gate.begun
WHERE true
  AND gate.name IN :names  --? names
ORDER BY gate.name, topic, partition, start_offset

-- name: count_unresolved
SELECT batch.gate, batch.status, count(*) AS number FROM gate CROSS JOIN batch
WHERE batch.gate = gate.name
  AND gate.name IN :names  --? names
  AND {unresolved}
GROUP BY batch.gate, batch.status

-- name: count_letters
-- Counts gate by gate: for a join, SQLite would read the index of all dead letters.
SELECT name AS gate, 'waiting' AS status, (SELECT count(*) FROM dead_letter
    WHERE dead_letter.gate = gate.name AND status = 'waiting') AS number
FROM gate
WHERE EXISTS (SELECT 1 FROM dead_letter WHERE dead_letter.gate = gate.name AND status = 'waiting')
  AND name IN :names  --? names

-- name: in_parts
-- Batches of these gates that are now run in parts, live or in a backfill.
SELECT batch.* FROM gate CROSS JOIN batch
WHERE batch.gate = gate.name
  AND gate.name IN :names  --? names
  AND batch.status IN ('in_progress', 'backfilling') AND batch.progress IS NOT NULL

-- name: with_details
-- Gates that have ever lost a record, or kept a dead letter.
SELECT name FROM gate
WHERE (EXISTS (SELECT 1 FROM lost WHERE lost.gate = gate.name)
    OR EXISTS (SELECT 1 FROM dead_letter WHERE dead_letter.gate = gate.name))
  AND name IN :names  --? names

-- name: series
SELECT min(created_time_ms) AS time_ms, max(lag) AS lag,
  max(end_time_ms - created_time_ms) AS duration_ms,
  sum(coalesce(records, planned_records)) AS records, min(rate_per_s) AS rate_per_s,
  sum(CASE WHEN status IN ('failed', 'dead') THEN 1 ELSE 0 END) AS failed,
  min(checkpoint_id) AS checkpoint_id, count(*) AS batches
FROM batch
WHERE gate = :gate AND created_time_ms >= :since_ms AND created_time_ms < :until_ms
GROUP BY created_time_ms / CAST(:bucket_ms AS bigint)
ORDER BY min(created_time_ms)

-- name: series_of_samples
SELECT min(time_ms) AS time_ms, avg(processing_rate_per_s) AS capacity_per_s,
  max(processing_delay_ms) AS duration_ms
FROM rate WHERE gate = :gate AND time_ms >= :since_ms AND time_ms < :until_ms
GROUP BY time_ms / CAST(:bucket_ms AS bigint)
ORDER BY min(time_ms)

-- name: oldest
SELECT min(created_time_ms) FROM batch WHERE gate = :gate AND created_time_ms >= :since_ms

-- name: open_batches
SELECT batch.gate, batch.status, count(*) AS number, min(batch.created_time_ms) AS oldest_ms
FROM gate CROSS JOIN batch
WHERE batch.gate = gate.name AND batch.status IN ('in_progress', 'failed', 'backfilling')
GROUP BY batch.gate, batch.status

-- name: partitions
SELECT gate.name, topic, partition, until_offset, latest_offset, topic_id
FROM gate JOIN batch_range ON batch_range.batch_key = gate.begun
ORDER BY gate.name, topic, partition

-- part: counted
counted.status, counted.reason,
  CASE WHEN counted.status <> 'success' OR counted.end_time_ms IS NULL THEN -1
    WHEN counted.took_ms <= 100 THEN 0 WHEN counted.took_ms <= 250 THEN 1
    WHEN counted.took_ms <= 500 THEN 2 WHEN counted.took_ms <= 1000 THEN 3
    WHEN counted.took_ms <= 2500 THEN 4 WHEN counted.took_ms <= 5000 THEN 5
    WHEN counted.took_ms <= 10000 THEN 6 WHEN counted.took_ms <= 30000 THEN 7
    WHEN counted.took_ms <= 60000 THEN 8 WHEN counted.took_ms <= 300000 THEN 9
    ELSE 10 END AS bucket,
  count(*) AS number, sum(coalesce(counted.records, counted.planned_records)) AS records,
  sum((SELECT count(*) FROM dead_letter WHERE dead_letter.batch_key = counted.batch_key))
    AS letters,
  sum(CASE WHEN counted.attempts > 1 THEN counted.attempts - 1 ELSE 0 END) AS retries,
  sum(coalesce(counted.took_ms, 0)) AS duration_ms

-- name: counts
-- Batches of each gate from a created time on, grouped by status, reason and duration. The bounds
-- are JSON: a gate's name, that time, and the time before which a batch is old.
SELECT counted.gate, counted.is_old, {counted}
FROM (SELECT batch.*, batch.created_time_ms < {item(bound.value, 2)} AS is_old,
    batch.end_time_ms - coalesce(batch.start_time_ms, batch.created_time_ms) AS took_ms
  FROM {rows(:bounds)} CROSS JOIN batch
  WHERE batch.gate = {word(bound.value, 0)}
    AND batch.created_time_ms >= {item(bound.value, 1)}) AS counted
GROUP BY 1, 2, 3, 4, 5

-- name: counts_of
SELECT {counted}
FROM (SELECT batch.*,
    batch.end_time_ms - coalesce(batch.start_time_ms, batch.created_time_ms) AS took_ms
  FROM batch WHERE batch.batch_key IN :keys) AS counted
GROUP BY 1, 2, 3

-- name: pruned_totals
SELECT pruned_totals FROM gate WHERE name = :gate

-- name: keep_pruned_totals
UPDATE gate SET pruned_totals = :totals WHERE name = :gate

-- name: newest_at
-- Time at which the gate's next offset was the newest of its log, according to its batches.
-- `planned` is the number of offsets that a batch and all newer batches have planned.
SELECT max(CASE WHEN lag <= planned THEN created_time_ms END) AS newest_ms,
  min(created_time_ms) AS oldest_ms
FROM (SELECT created_time_ms, lag, sum(planned_records) OVER (ORDER BY created_time_ms DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS planned
  FROM batch WHERE gate = :gate AND checkpoint_id = :checkpoint_id
  ORDER BY created_time_ms DESC LIMIT :limit) AS backlog
