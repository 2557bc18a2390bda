-- Gates: their declarations, the query that owns each, their throttles, and the limits of a batch.
-- Leases are measured by the database's clock, so the clocks of the planners' machines may differ.

-- part: gate_columns
gate.name, gate.interval_ms, gate.source, gate.estimator, gate.created_ms, gate.gate_id,
gate.rate_per_s, gate.rate_time_ms, gate.batch_cost, gate.size_ceiling, gate.ended_ms, gate.ended,
gate.ended_error, gate.sink_outage

-- part: query_columns
query_owner, query_driver, query_read, query_described, query_checkpoint, query_checkpoint_id,
query_since_ms, query_until_ms, query_begins

-- part: nobody
query_owner = NULL, query_driver = NULL, query_read = NULL, query_described = NULL,
query_checkpoint = NULL, query_checkpoint_id = NULL, query_since_ms = NULL, query_until_ms = NULL,
query_begins = NULL

-- name: declare
-- Replaces the declaration of a known gate; its rate and its history stay.
INSERT INTO gate (name, interval_ms, source, estimator, created_ms, gate_id)
VALUES (:gate, :interval_ms, :source, :estimator, :created_ms, :gate_id)
ON CONFLICT (name) DO UPDATE SET interval_ms = excluded.interval_ms, source = excluded.source,
  estimator = excluded.estimator

-- name: declare_new
INSERT INTO gate (name, interval_ms, source, estimator, created_ms, gate_id)
VALUES (:gate, :interval_ms, :source, :estimator, :created_ms, :gate_id)
ON CONFLICT DO NOTHING

-- name: gates
SELECT {gate_columns} FROM gate
WHERE true
  AND name = :gate  --? gate
ORDER BY name

-- name: names
SELECT name FROM gate ORDER BY name

-- name: lock
SELECT name FROM gate WHERE name = :gate {locked}

-- name: next_sequence
UPDATE gate SET sequence = sequence + 1 WHERE name = :gate RETURNING sequence

-- name: claim
-- A lease longer than the longest lease was written while the database's clock was ahead.
UPDATE gate SET source = :source, estimator = :estimator,
  interval_ms = coalesce(CAST(:new_interval_ms AS bigint), interval_ms),
  query_owner = :by, query_driver = :driver, query_read = :read, query_described = :described,
  query_checkpoint = NULL, query_checkpoint_id = NULL,
  query_since_ms = {now}, query_until_ms = {now} + CAST(:lease_ms AS bigint), query_begins = begins,
  stop_action = NULL, ended_ms = NULL, ended = NULL, ended_error = NULL
WHERE name = :gate AND (query_owner IS NULL OR query_owner = :by OR query_owner = :gone
  OR query_until_ms <= {now} OR query_until_ms > {now} + CAST(:lease_ms AS bigint))

-- name: renew
UPDATE gate SET query_until_ms = {now} + CAST(:lease_ms AS bigint)
WHERE name = :gate AND query_owner = :by

-- name: release
UPDATE gate SET {nobody} WHERE name = :gate AND query_owner = :by

-- name: end
-- Records how a query has ended; another program's or owner's query stays unchanged.
UPDATE gate SET {nobody}, ended_ms = {now}, ended = :how, ended_error = :error
WHERE name = :gate AND (query_owner IS NULL OR (query_driver = :driver
  AND (CAST(:owner AS text) IS NULL OR query_owner = :owner)))

-- name: set_checkpoint
UPDATE gate SET query_checkpoint = :checkpoint WHERE name = :gate AND query_owner = :by

-- name: query
SELECT {query_columns} FROM gate WHERE name = :gate AND query_owner IS NOT NULL

-- name: begun_and_query
-- At one moment: the gate's owner, and the newest batch that the gate has begun.
SELECT gate.begins, query_until_ms > {now} AS query_lives, {query_columns}, batch.*
FROM gate LEFT JOIN batch ON batch.batch_key = gate.begun WHERE gate.name = :gate

-- name: last_queries
SELECT name, query_until_ms > {now} AS query_lives, {query_columns} FROM gate
WHERE query_owner IS NOT NULL
  AND name IN :names  --? names

-- name: throttle
UPDATE gate SET throttle_per_s = :per_s, throttled_by = :by, throttle_level = :level,
  throttle_origin_per_s = :origin_per_s, throttle_until_ms = {now} + CAST(:lease_ms AS bigint),
  pressures = :heard
WHERE name = :gate

-- name: pressures
SELECT pressures FROM gate WHERE name = :gate

-- name: ceiling
SELECT size_ceiling FROM gate WHERE name = :gate

-- name: change_ceiling
-- Changes nothing if the ceiling is not `before`.
UPDATE gate SET size_ceiling = CAST(:after AS text)
WHERE name = :gate AND size_ceiling IS NOT DISTINCT FROM CAST(:before AS text)

-- part: actions
{now} AS at_ms, gate.last_action, gate.hold_action, gate.limit_action, gate.stop_action

-- name: controls
-- Operators' actions in force of each gate, by number.
SELECT gate.name, {actions} FROM gate
WHERE true
  AND gate.name = :gate  --? gate
  AND gate.name IN :names  --? names
ORDER BY gate.name

-- name: gates_now
-- Gates at one moment, each with its newest batch, for planners, pages and metrics. One statement,
-- so that a rate and its limits are of the same moment. In PostgreSQL the sum of whole numbers is a
-- decimal.
SELECT {gate_columns}, gate.lost_offsets, gate.pruned_totals, gate.reported, gate.begins,
  gate.query_owner IS NOT NULL AND gate.query_until_ms > {now} AS has_query,
  CASE WHEN gate.throttle_until_ms > {now} THEN gate.throttle_per_s END AS throttle_per_s,
  gate.throttled_by, gate.throttle_level, gate.throttle_origin_per_s,
  (SELECT processing_rate_per_s FROM rate WHERE rate.gate = gate.name
    ORDER BY time_ms DESC LIMIT 1) AS capacity_per_s,
  (SELECT CAST(sum(checkpoint.offsets) AS bigint) FROM checkpoint
    WHERE checkpoint.gate = gate.name AND checkpoint.checkpoint_id = batch.checkpoint_id)
    AS position,
  batch.checkpoint_id, batch.created_time_ms AS planned_ms, batch.lag,
  batch.planned_records AS planned, {actions}
FROM gate LEFT JOIN batch ON batch.batch_key = gate.begun
WHERE true
  AND gate.name = :gate  --? gate
ORDER BY gate.name
