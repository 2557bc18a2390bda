-- Operators' actions, one row each; a gate's row refers to the actions in force.

-- part: actions
SELECT action_id, gate, kind, by_whom, why, time_ms, records_per_s, until_ms, seen_ms, target,
  outcome
FROM action

-- name: new
-- Inserts once per call: a repeated call finds its own row, and gets no number.
INSERT INTO action (gate, kind, by_whom, why, time_ms, records_per_s, until_ms, target, last_call)
VALUES (:gate, :kind, :by_whom, :why, {now}, :records_per_s, :until_ms, :target, :call)
ON CONFLICT (last_call) DO NOTHING RETURNING action_id

-- name: hold
UPDATE gate SET hold_action = :number, last_action = :number WHERE name = :gate

-- name: end_hold
UPDATE gate SET hold_action = NULL, last_action = :number WHERE name = :gate

-- name: limit
UPDATE gate SET limit_action = :number, last_action = :number WHERE name = :gate

-- name: end_limit
UPDATE gate SET limit_action = NULL, last_action = :number WHERE name = :gate

-- name: stop
UPDATE gate SET stop_action = :number, last_action = :number WHERE name = :gate

-- name: lift_ceiling
UPDATE gate SET size_ceiling = NULL, last_action = :number WHERE name = :gate

-- name: to_stop
-- A stop of a query that has ended does not apply to the next query.
SELECT name FROM gate WHERE stop_action IS NOT NULL AND ended IS NULL AND name IN :names

-- name: withdraw_stop
UPDATE gate SET stop_action = NULL WHERE name = :gate AND stop_action IS NOT NULL

-- name: in_force
-- A row that a gate's row refers to never changes, except for `seen_ms`.
{actions}
WHERE action_id IN :numbers

-- name: history
{actions}
WHERE true
  AND gate = :gate  --? gate
  AND action_id < :before  --? before
ORDER BY action_id DESC LIMIT :limit

-- name: for_the_start
-- A forgotten restart must not read everything again when a checkpoint is lost later.
{actions}
WHERE gate = :gate AND seen_ms IS NULL AND kind IN ('adopt', 'restart', 'continued')
  AND (kind <> 'restart' OR time_ms > {now} - CAST(:restart_lasts_ms AS bigint))
ORDER BY action_id

-- name: start_obeyed
UPDATE action SET seen_ms = {now}
WHERE gate = :gate AND seen_ms IS NULL AND kind IN ('adopt', 'continued')

-- name: restarted
UPDATE action SET seen_ms = {now} WHERE gate = :gate AND seen_ms IS NULL AND kind = 'restart'

-- name: continued
SELECT gate, why FROM action WHERE seen_ms IS NULL AND kind = 'continued'
  AND gate IN :names  --? names
ORDER BY action_id

-- name: mark_seen
-- Marks the kinds that a planner obeys; a start marks the others.
UPDATE action SET seen_ms = {now}
WHERE gate = :gate AND seen_ms IS NULL AND action_id <= :newest AND kind IN :kinds

-- name: open_batches
SELECT status, count(*) AS number FROM batch
WHERE gate = :gate AND status IN ('in_progress', 'failed', 'backfilling') GROUP BY status
