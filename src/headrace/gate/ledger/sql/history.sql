-- Offsets that gates have read and lost: in their batches, in pruned batches, and the position of
-- each checkpoint.

-- part: losses
SELECT lost.*, batch.checkpoint_id
FROM lost LEFT JOIN batch ON batch.batch_key = lost.batch_key

-- part: by_time
ORDER BY lost.time_ms, lost.topic, lost.topic_id, lost.partition, lost.from_offset, lost.batch_key

-- name: losses
{losses}
WHERE lost.gate = :gate
{by_time}

-- name: losses_of_batches
{losses}
WHERE lost.batch_key IN :batches
{by_time}

-- name: record_loss
-- A loss is identified by its first offset: recorded again, it counts once, up to its highest end.
INSERT INTO lost (gate, topic, partition, from_offset, until_offset, time_ms, topic_id, batch_key,
  reason)
VALUES (:gate, :topic, :partition, :from_offset, :until_offset, :time_ms, :topic_id, :batch_key,
  :reason)
ON CONFLICT (gate, topic, partition, from_offset, topic_id, batch_key) DO UPDATE
SET until_offset = excluded.until_offset WHERE lost.until_offset < excluded.until_offset

-- name: withdraw_loss
DELETE FROM lost WHERE gate = :gate AND topic = :topic AND partition = :partition
  AND topic_id = :topic_id AND batch_key = '' AND from_offset = :position

-- name: count_losses
-- Runs after every change of a gate's losses, in the same transaction.
UPDATE gate SET lost_offsets = (SELECT coalesce(sum(until_offset - from_offset), 0) FROM lost
  WHERE lost.gate = gate.name)
WHERE name = :gate

-- name: latest_seen
SELECT topic, partition, topic_id, max(latest_offset) AS latest
FROM batch_range JOIN batch ON batch.batch_key = batch_range.batch_key
WHERE batch.gate = :gate AND latest_offset IS NOT NULL GROUP BY topic, partition, topic_id

-- name: positions
SELECT gate, until_offsets FROM position WHERE topic_id = :topic_id

-- part: is_closed
(status = 'success' OR status = 'dead' AND resolution IS NOT NULL) AND NOT EXISTS (
    SELECT 1 FROM dead_letter
    WHERE dead_letter.batch_key = batch.batch_key AND dead_letter.status = 'waiting')

-- name: open_ranges
-- A batch is closed if nobody needs its ranges or one of its dead letters any more.
SELECT partition, start_offset, batch.batch_key, status
FROM batch JOIN batch_range ON batch_range.batch_key = batch.batch_key
WHERE gate = :gate AND topic_id = :topic_id
  AND status IN ('in_progress', 'failed', 'backfilling', 'dead') AND NOT ({is_closed})

-- name: last_ranges
SELECT partition, start_offset, batch.batch_key, status
FROM gate JOIN batch ON batch.batch_key = gate.begun
  JOIN batch_range ON batch_range.batch_key = batch.batch_key
WHERE gate.name = :gate AND topic_id = :topic_id

-- name: pruned
SELECT checkpoint_id, topic, topic_id, partition, start_offset, until_offset FROM pruned
WHERE gate = :gate

-- name: forget_pruned
DELETE FROM pruned WHERE gate = :gate

-- name: new_pruned
-- The ranges are JSON, with the columns in this order.
INSERT INTO pruned (gate, checkpoint_id, topic, topic_id, partition, start_offset, until_offset)
SELECT :gate, {word(bound.value, 0)}, {word(bound.value, 1)}, {word(bound.value, 2)},
  {item(bound.value, 3)}, {item(bound.value, 4)}, {item(bound.value, 5)}
FROM {rows(:ranges)}

-- name: old_batches
-- Batches that can be deleted according to their own row, from one created time on. A batch is
-- created before it ends: the created time serves the index, the end time decides.
SELECT batch_key, created_time_ms FROM batch
WHERE gate = :gate AND {is_closed}
  AND created_time_ms > :after_ms AND created_time_ms < :before_ms AND end_time_ms < :before_ms
  AND batch_key <> (SELECT newest.batch_key FROM batch AS newest WHERE newest.gate = :gate
    ORDER BY newest.created_time_ms DESC LIMIT 1)
ORDER BY created_time_ms LIMIT :limit

-- name: old_ranges
SELECT batch.batch_key, checkpoint_id, topic, coalesce(topic_id, '') AS topic_id, partition,
  start_offset, until_offset
FROM batch JOIN batch_range ON batch_range.batch_key = batch.batch_key WHERE batch.batch_key IN :keys

-- name: delete_batches
-- The foreign keys delete the batches' ranges and dead letters too.
DELETE FROM batch WHERE batch_key IN :keys

-- name: delete_rates
DELETE FROM rate WHERE rate_id IN (SELECT rate_id FROM rate
  WHERE gate = :gate AND time_ms < :before_ms LIMIT :limit)

-- name: checkpoints
SELECT * FROM checkpoint WHERE gate = :gate ORDER BY checkpoint_id, topic, topic_id

-- name: untils
SELECT until_offsets FROM checkpoint WHERE gate = :gate AND checkpoint_id = :checkpoint_id
  AND topic = :topic AND topic_id = :topic_id

-- part: checkpoint
INSERT INTO checkpoint (gate, checkpoint_id, topic, topic_id, start_offsets, until_offsets, offsets,
  begun, begins)
VALUES (:gate, :checkpoint_id, :topic, :topic_id, :start_offsets, :until_offsets, :offsets, :begun,
  (SELECT begins FROM gate WHERE name = :gate))
ON CONFLICT (gate, checkpoint_id, topic, topic_id) DO UPDATE SET

-- name: plan
-- Adds a batch behind its checkpoint's earlier batches. It runs after the batch was counted.
{checkpoint}
  start_offsets = {merge(excluded.start_offsets, checkpoint.start_offsets)},
  until_offsets = {merge(checkpoint.until_offsets, excluded.until_offsets)},
  offsets = checkpoint.offsets + excluded.offsets,
  begun = coalesce(excluded.begun, checkpoint.begun), begins = excluded.begins

-- name: start
-- Records where a checkpoint begins; a known partition stays unchanged.
{checkpoint}
  start_offsets = {merge(excluded.start_offsets, checkpoint.start_offsets)},
  until_offsets = {merge(excluded.until_offsets, checkpoint.until_offsets)}

-- name: begun_again
UPDATE checkpoint SET begun = :batch, begins = (SELECT begins FROM gate WHERE name = :gate)
WHERE gate = :gate AND checkpoint_id = :checkpoint_id

-- name: advance
-- Sets the gate's position to this checkpoint's end, in place of another checkpoint's end.
INSERT INTO position (topic_id, gate, checkpoint_id, until_offsets)
SELECT topic_id, gate, checkpoint_id, until_offsets FROM checkpoint
WHERE gate = :gate AND checkpoint_id = :checkpoint_id AND topic = :topic AND topic_id = :topic_id
ON CONFLICT (topic_id, gate) DO UPDATE SET checkpoint_id = excluded.checkpoint_id,
  until_offsets = excluded.until_offsets
