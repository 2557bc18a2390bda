-- Stages of flows: their signals and states, and their attempts to write batches into topics.
-- At most 4097 characters of a text are read; a valid text has at most 4096.

-- name: send
INSERT INTO signal (flow, receiver, sender, body, written_ms)
VALUES (:flow, :receiver, :sender, :text, {now})
ON CONFLICT (flow, receiver, sender) DO UPDATE SET body = excluded.body,
  written_ms = excluded.written_ms

-- name: sent_to
SELECT sender AS stage, substr(body, 1, 4097) AS text, {now} - written_ms AS age_ms
FROM signal WHERE flow = :flow AND receiver = :receiver

-- name: remove
DELETE FROM signal WHERE flow = :flow AND receiver = :receiver AND sender = :sender
  AND substr(body, 1, 4097) = :text

-- name: publish
INSERT INTO stage_state (flow, stage, body, written_ms) VALUES (:flow, :stage, :text, {now})
ON CONFLICT (flow, stage) DO UPDATE SET body = excluded.body, written_ms = excluded.written_ms

-- name: published
SELECT stage, substr(body, 1, 4097) AS text, {now} - written_ms AS age_ms
FROM stage_state WHERE flow = :flow

-- name: flows
SELECT DISTINCT flow FROM stage_state ORDER BY flow

-- name: withdraw
DELETE FROM stage_state WHERE flow = :flow AND stage = :stage AND body = :text

-- name: forget_signals
DELETE FROM signal WHERE flow = :flow AND written_ms < {now} - CAST(:remembered_ms AS bigint)

-- name: forget_states
DELETE FROM stage_state WHERE flow = :flow AND written_ms < {now} - CAST(:remembered_ms AS bigint)

-- name: new_secret
INSERT INTO flow_secret (flow, secret) VALUES (:flow, :secret) ON CONFLICT DO NOTHING

-- name: secret
SELECT secret FROM flow_secret WHERE flow = :flow

-- name: begin
INSERT INTO output (topic_id, attempt, batch_key, state, starts)
VALUES (:topic, :by, :batch, 'begun', :starts) ON CONFLICT DO NOTHING

-- name: done
SELECT attempt FROM output WHERE topic_id = :topic AND batch_key = :batch AND state = 'done'

-- name: is_final
-- A part's key begins with its batch's key.
SELECT status FROM batch
WHERE batch_key = substr(CAST(:batch AS text), 1, 32) AND status IN ('success', 'dead')

-- name: abort_others
UPDATE output SET state = 'aborted'
WHERE topic_id = :topic AND batch_key = :batch AND attempt <> :by AND state = 'begun'

-- name: finish
-- Changes neither an aborted attempt, nor an attempt of a batch that is final.
UPDATE output SET state = 'done'
WHERE topic_id = :topic AND attempt = :by AND state = 'begun' AND NOT EXISTS (
  SELECT 1 FROM batch
  WHERE batch.batch_key = substr(CAST(:batch AS text), 1, 32) AND status IN ('success', 'dead'))

-- name: abort
UPDATE output SET state = 'aborted' WHERE topic_id = :topic AND attempt = :by AND state = 'begun'

-- name: abort_abandoned
-- Aborts attempts of batches that nobody runs; a batch whose lease has just expired still runs.
UPDATE output SET state = 'aborted'
WHERE topic_id = :topic AND state = 'begun'
  AND EXISTS (SELECT 1 FROM batch WHERE batch.batch_key = substr(output.batch_key, 1, 32))
  AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.batch_key = substr(output.batch_key, 1, 32)
    AND status IN ('in_progress', 'backfilling')
    AND (lease_until_ms IS NULL OR lease_until_ms > :lately_ms))

-- name: forget_done
DELETE FROM output WHERE topic_id = :topic AND state = 'done' AND EXISTS (
  SELECT 1 FROM batch WHERE batch.batch_key = substr(output.batch_key, 1, 32)
    AND status IN ('success', 'dead'))

-- name: state
SELECT state FROM output WHERE topic_id = :topic AND attempt = :by

-- name: open
SELECT starts FROM output WHERE topic_id = :topic AND state = 'begun'

-- name: aborted
SELECT batch_key, attempt, starts FROM output WHERE topic_id = :topic AND state = 'aborted'
ORDER BY attempt
