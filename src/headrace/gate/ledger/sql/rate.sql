-- Rates in force, the samples from which they were learnt, and outages of sinks.

-- name: current
SELECT rate_per_s FROM gate WHERE name = :gate

-- name: put_in_force
-- Runs first in its transaction: the lock on the gate's row makes the gate's next report wait.
UPDATE gate SET rate_per_s = coalesce(CAST(:new_rate AS double precision), rate_per_s),
  rate_time_ms = CASE WHEN CAST(:new_rate AS double precision) IS NULL THEN rate_time_ms
    ELSE :time_ms END,
  reported = :batch_key, batch_cost = coalesce(CAST(:new_cost AS text), batch_cost),
  interval_ms = coalesce(CAST(:new_interval_ms AS bigint), interval_ms)
WHERE name = :gate

-- name: keep_sample
-- Inserts a sample once: the same sample again changes nothing.
INSERT INTO rate (gate, time_ms, rate_per_s, records, processing_delay_ms, scheduling_delay_ms,
  processing_rate_per_s, proportional, integral, derivative, query_batch_id, batch_key)
SELECT CAST(:gate AS text), CAST(:time_ms AS bigint), CAST(:rate_per_s AS double precision),
  CAST(:records AS bigint), CAST(:processing_delay_ms AS bigint),
  CAST(:scheduling_delay_ms AS bigint), CAST(:processing_rate_per_s AS double precision),
  CAST(:proportional AS double precision), CAST(:integral AS double precision),
  CAST(:derivative AS double precision), CAST(:query_batch_id AS bigint),
  CAST(:batch_key AS text)
WHERE NOT EXISTS (SELECT 1 FROM rate WHERE gate = CAST(:gate AS text)
  AND time_ms = CAST(:time_ms AS bigint)
  AND rate_per_s IS NOT DISTINCT FROM CAST(:rate_per_s AS double precision)
  AND records = CAST(:records AS bigint)
  AND processing_delay_ms = CAST(:processing_delay_ms AS bigint)
  AND scheduling_delay_ms = CAST(:scheduling_delay_ms AS bigint)
  AND processing_rate_per_s IS NOT DISTINCT FROM CAST(:processing_rate_per_s AS double precision)
  AND proportional IS NOT DISTINCT FROM CAST(:proportional AS double precision)
  AND integral IS NOT DISTINCT FROM CAST(:integral AS double precision)
  AND derivative IS NOT DISTINCT FROM CAST(:derivative AS double precision)
  AND query_batch_id IS NOT DISTINCT FROM CAST(:query_batch_id AS bigint)
  AND batch_key IS NOT DISTINCT FROM CAST(:batch_key AS text))

-- name: set_records
UPDATE batch SET records = :records WHERE batch_key = :batch_key RETURNING status

-- name: newest
SELECT gate, time_ms, rate_per_s, records, processing_delay_ms, scheduling_delay_ms,
  processing_rate_per_s, proportional, integral, derivative, query_batch_id, batch_key
FROM rate WHERE gate = :gate
  AND time_ms <= :before_ms  --? before_ms
ORDER BY time_ms DESC, rate_id DESC LIMIT :limit

-- name: reported_ms
SELECT batch_key, processing_delay_ms FROM rate
WHERE gate = :gate AND time_ms >= :since_ms AND batch_key IN :batches
ORDER BY time_ms DESC, rate_id DESC

-- name: keep_outage
-- Records one more failed run, and clears a request for a run.
UPDATE gate SET sink_outage = :text, sink_retry_ms = NULL WHERE name = :gate

-- name: end_outage
UPDATE gate SET sink_outage = NULL, sink_retry_ms = NULL
WHERE name = :gate AND sink_outage IS NOT NULL RETURNING rate_per_s, estimator

-- name: go_on_at
UPDATE gate SET rate_per_s = :new_rate WHERE name = :gate

-- name: run_at_once
UPDATE gate SET sink_retry_ms = {now} WHERE name = :gate AND sink_outage IS NOT NULL

-- name: outage
SELECT sink_outage FROM gate WHERE name = :gate

-- name: is_asked
SELECT sink_retry_ms IS NOT NULL FROM gate WHERE name = :gate
