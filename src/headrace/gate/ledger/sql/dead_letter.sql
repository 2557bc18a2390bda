-- Dead letters: records that cannot be processed, kept until they are resolved.

-- name: new
-- Inserts each record of a batch once.
INSERT INTO dead_letter (batch_key, gate, topic, partition, "offset", "key", value, headers,
  timestamp_ms, timestamp_type, error_class, error_message, error_trace, created_ms, status)
VALUES (:batch_key, :gate, :topic, :partition, :offset, :key, :value, :headers,
  :timestamp_ms, :timestamp_type, :error_class, :error_message, :error_trace, :created_ms, 'waiting')
ON CONFLICT DO NOTHING

-- name: letter
SELECT * FROM dead_letter WHERE dead_letter_id = :letter

-- part: is_callers
(status = 'waiting' AND (claimed_until_ms IS NULL OR claimed_until_ms <= {now}) OR last_call = :call)

-- name: claim
-- A repeated call finds its own id, like a transition of a batch.
UPDATE dead_letter SET claimed_until_ms = {now} + CAST(:claim_ms AS bigint), last_call = :call
WHERE dead_letter_id = :letter AND {is_callers}

-- name: release
UPDATE dead_letter SET claimed_until_ms = NULL WHERE dead_letter_id = :letter AND last_call = :call

-- name: resolve
UPDATE dead_letter SET claimed_until_ms = NULL, status = :outcome, resolved_ms = :now_ms,
  resolution = :why, sent_value = :sent_value, last_call = :call
WHERE dead_letter_id = :letter AND {is_callers}

-- name: values
SELECT dead_letter_id, value FROM dead_letter WHERE dead_letter_id IN :letters

-- name: rejected
-- Dead letters of a gate, each with its batch's checkpoint and topic id.
SELECT dead_letter.batch_key, dead_letter.topic, dead_letter.partition, dead_letter."offset",
  dead_letter.error_class, dead_letter.error_message, batch.checkpoint_id, batch_range.topic_id
FROM dead_letter JOIN batch ON batch.batch_key = dead_letter.batch_key
  JOIN batch_range ON batch_range.batch_key = dead_letter.batch_key
    AND batch_range.topic = dead_letter.topic AND batch_range.partition = dead_letter.partition
    AND batch_range.start_offset <= dead_letter."offset"
    AND batch_range.until_offset > dead_letter."offset"
WHERE dead_letter.gate = :gate
ORDER BY batch.checkpoint_id, dead_letter.topic, batch_range.topic_id, dead_letter.partition,
  dead_letter."offset"

-- name: count_by_batch
SELECT batch_key, count(*) AS number FROM dead_letter WHERE batch_key IN :batches
GROUP BY batch_key

-- name: oldest
-- Dead letters of one gate and status, in the order of their index.
SELECT * FROM dead_letter WHERE gate = :gate AND status = :status AND dead_letter_id > :after
  AND created_ms >= :since_ms  --? since_ms
  AND created_ms < :until_ms  --? until_ms
  AND (error_class = :error_class OR error_class LIKE :error_name ESCAPE '/')  --? error_class
ORDER BY dead_letter_id LIMIT :limit

-- name: oldest_of_all
-- The oldest letters of all gates: at most the limit of each gate, and the oldest of these. CROSS
-- JOIN makes SQLite read the gates first. MATERIALIZED makes PostgreSQL compute the bound of each
-- gate once, instead of for each letter, or reading all letters in the order of their numbers.
WITH bound AS MATERIALIZED (
  SELECT name, coalesce((SELECT dead_letter_id FROM dead_letter
    WHERE gate = name AND status = :status AND dead_letter_id > :after
      AND created_ms >= :since_ms  --? since_ms
      AND created_ms < :until_ms  --? until_ms
      AND (error_class = :error_class OR error_class LIKE :error_name ESCAPE '/')  --? error_class
    ORDER BY dead_letter_id LIMIT 1 OFFSET :all_but_one), 9223372036854775807) AS last_id
  FROM gate
), below AS MATERIALIZED (
  SELECT dead_letter_id FROM bound CROSS JOIN dead_letter
  WHERE gate = name AND status = :status AND dead_letter_id > :after AND dead_letter_id <= last_id
    AND created_ms >= :since_ms  --? since_ms
    AND created_ms < :until_ms  --? until_ms
    AND (error_class = :error_class OR error_class LIKE :error_name ESCAPE '/')  --? error_class
)
SELECT * FROM dead_letter
WHERE dead_letter_id IN (SELECT dead_letter_id FROM below ORDER BY dead_letter_id LIMIT :limit)
ORDER BY dead_letter_id

-- name: processed_any
-- Returns a row if any record of a successful batch fits the schema.
SELECT batch_key FROM batch WHERE gate = :gate AND status = 'success' AND planned_records > (
  SELECT count(*) FROM dead_letter
  WHERE dead_letter.batch_key = batch.batch_key AND error_class = :bad_value)
LIMIT 1

-- name: pruned_any
SELECT topic FROM pruned WHERE gate = :gate LIMIT 1

-- name: count_bad_values
SELECT count(*) FROM dead_letter WHERE gate = :gate AND error_class = :bad_value

-- name: fit_counts
SELECT planned_records, (SELECT count(*) FROM dead_letter
    WHERE dead_letter.batch_key = batch.batch_key AND error_class = :bad_value) AS unfit
FROM batch WHERE gate = :gate AND status = 'success' ORDER BY created_time_ms DESC LIMIT :limit
