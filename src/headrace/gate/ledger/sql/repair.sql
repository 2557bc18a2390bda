-- Operators' actions on failures, each with its row in action; and groups of similar failures.

-- name: new
-- Inserts once per call, even if the call is repeated.
INSERT INTO action (gate, kind, by_whom, why, time_ms, target, outcome, last_call)
VALUES (:gate, :kind, :by_whom, :why, :time_ms, :target, :outcome, :last_call)
ON CONFLICT (last_call) DO NOTHING

-- name: written
SELECT action_id, outcome FROM action WHERE last_call = :last_call

-- name: outcome
UPDATE action SET outcome = :what WHERE action_id = :number

-- name: retry
UPDATE batch SET retry_ms = :now_ms WHERE batch_key = :batch AND gate = :gate AND status = 'failed'

-- name: drop
UPDATE batch SET resolution = :why
WHERE batch_key = :batch AND gate = :gate AND status = 'dead' AND resolution IS NULL

-- name: accept
INSERT INTO accepted (gate, topic, topic_id, partition, from_offset, until_offset, time_ms, why)
VALUES (:gate, :topic, :topic_id, :partition, :from_offset, :until_offset, :time_ms, :why)
ON CONFLICT (gate, topic, topic_id, partition, from_offset) DO UPDATE SET
  until_offset = excluded.until_offset, time_ms = excluded.time_ms, why = excluded.why

-- name: alike_batches
-- CROSS JOIN makes SQLite read the gates first, and use each gate's index.
SELECT batch.gate, batch.error_class, min(batch.error_message) AS message,
  count(DISTINCT batch.error_message) AS messages, batch.status, count(*) AS number,
  sum(batch.planned_records - batch.done_records) AS records,
  min(batch.created_time_ms) AS oldest_ms, max(batch.created_time_ms) AS newest_ms,
  min(batch.batch_key) AS "key"
FROM gate CROSS JOIN batch
WHERE batch.gate = gate.name AND {unresolved}
  AND gate.name = :gate  --? gate
GROUP BY batch.gate, batch.error_class, batch.status
ORDER BY min(batch.created_time_ms), batch.gate, batch.error_class, batch.status
LIMIT :limit OFFSET :skip

-- name: alike_letters
SELECT dead_letter.gate, dead_letter.error_class, min(dead_letter.error_message) AS message,
  count(DISTINCT dead_letter.error_message) AS messages, count(*) AS number,
  min(dead_letter.created_ms) AS oldest_ms, max(dead_letter.created_ms) AS newest_ms,
  min(dead_letter.dead_letter_id) AS letter
FROM gate CROSS JOIN dead_letter
WHERE dead_letter.gate = gate.name AND dead_letter.status = 'waiting'
  AND gate.name = :gate  --? gate
GROUP BY dead_letter.gate, dead_letter.error_class
ORDER BY min(dead_letter.created_ms), dead_letter.gate, dead_letter.error_class
LIMIT :limit OFFSET :skip

-- name: letters_of
SELECT * FROM dead_letter WHERE batch_key = :batch ORDER BY dead_letter_id
LIMIT :limit OFFSET :skip
