-- Gates: their declarations, the query that owns each, their throttles, and what bounds a batch.
-- Times of leases are the database's own, so that planners on several machines need no clock in
-- common.

-- part: gate_columns
name, interval_ms, source, estimator, created_ms, gate_id, rate_per_s, rate_time_ms, batch_cost,
size_ceiling, ended_ms, ended, ended_error, sink_outage

-- part: query_columns
query_owner, query_driver, query_read, query_described, query_checkpoint, query_checkpoint_id,
query_since_ms, query_until_ms, query_begins

-- part: nobody
query_owner = NULL, query_driver = NULL, query_read = NULL, query_described = NULL,
query_checkpoint = NULL, query_checkpoint_id = NULL, query_since_ms = NULL, query_until_ms = NULL,
query_begins = NULL

-- name: declare
-- A gate that is known is described again; its rate and its history stay.
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
-- A lease that is longer than a lease can be was written while the database's clock was ahead.
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
-- Says how a query has ended; nothing of another program's query, or of another owner's.
UPDATE gate SET {nobody}, ended_ms = {now}, ended = :how, ended_error = :error
WHERE name = :gate AND (query_owner IS NULL OR (query_driver = :driver
  AND (CAST(:owner AS text) IS NULL OR query_owner = :owner)))

-- name: set_checkpoint
UPDATE gate SET query_checkpoint = :checkpoint WHERE name = :gate AND query_owner = :by

-- name: query
SELECT {query_columns} FROM gate WHERE name = :gate AND query_owner IS NOT NULL

-- name: begun_and_query
-- The query that owned the gate at that moment had begun that batch, or none yet.
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
-- Changes nothing where another one is there.
UPDATE gate SET size_ceiling = CAST(:after AS text)
WHERE name = :gate AND size_ceiling IS NOT DISTINCT FROM CAST(:before AS text)

-- part: actions
{now} AS at_ms, gate.last_action,
hold_action.action_id AS hold_action_id, hold_action.gate AS hold_gate,
hold_action.kind AS hold_kind, hold_action.by_whom AS hold_by_whom, hold_action.why AS hold_why,
hold_action.time_ms AS hold_time_ms, hold_action.records_per_s AS hold_records_per_s,
hold_action.until_ms AS hold_until_ms, hold_action.seen_ms AS hold_seen_ms,
hold_action.target AS hold_target, hold_action.outcome AS hold_outcome,
limit_action.action_id AS limit_action_id, limit_action.gate AS limit_gate,
limit_action.kind AS limit_kind, limit_action.by_whom AS limit_by_whom,
limit_action.why AS limit_why, limit_action.time_ms AS limit_time_ms,
limit_action.records_per_s AS limit_records_per_s, limit_action.until_ms AS limit_until_ms,
limit_action.seen_ms AS limit_seen_ms, limit_action.target AS limit_target,
limit_action.outcome AS limit_outcome,
stop_action.action_id AS stop_action_id, stop_action.gate AS stop_gate,
stop_action.kind AS stop_kind, stop_action.by_whom AS stop_by_whom, stop_action.why AS stop_why,
stop_action.time_ms AS stop_time_ms, stop_action.records_per_s AS stop_records_per_s,
stop_action.until_ms AS stop_until_ms, stop_action.seen_ms AS stop_seen_ms,
stop_action.target AS stop_target, stop_action.outcome AS stop_outcome

-- part: gates_with_actions
gate LEFT JOIN action AS hold_action ON hold_action.action_id = gate.hold_action
  LEFT JOIN action AS stop_action ON stop_action.action_id = gate.stop_action
  LEFT JOIN action AS limit_action ON limit_action.action_id = gate.limit_action
    AND (limit_action.until_ms IS NULL OR limit_action.until_ms > {now})

-- name: controls
-- What operators have put in force, of each gate, as of one moment.
SELECT gate.name, {actions} FROM {gates_with_actions}
WHERE true
  AND gate.name = :gate  --? gate
  AND gate.name IN :names  --? names
ORDER BY gate.name

-- name: admission
-- All that bounds the next batch of a gate, in one statement with what operators have put in force.
SELECT gate.name, gate.rate_per_s, gate.interval_ms,
  CASE WHEN gate.throttle_until_ms > {now} THEN gate.throttle_per_s END AS per_s,
  gate.throttled_by, gate.throttle_level, gate.throttle_origin_per_s, gate.size_ceiling,
  gate.reported, gate.begins, {actions}
FROM {gates_with_actions} WHERE gate.name = :gate
