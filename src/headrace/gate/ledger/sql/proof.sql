-- The proof that a gate leaves no offset out: the ranges of its batches, and their outcomes.

-- part: covered
(SELECT checkpoint_id, topic, coalesce(topic_id, '') AS topic_id, partition, start_offset,
    until_offset, batch.batch_key AS batch_key, status, created_time_ms
  FROM batch JOIN batch_range ON batch_range.batch_key = batch.batch_key WHERE gate = :gate
  UNION ALL
  SELECT checkpoint_id, topic, topic_id, partition, start_offset, until_offset, NULL, 'success',
    CAST(NULL AS bigint)
  FROM pruned WHERE gate = :gate) AS covered

-- name: coverage
-- Each range of a gate's batches, including pruned batches.
SELECT checkpoint_id, topic, topic_id, partition, start_offset, until_offset, batch_key, status
FROM {covered}
ORDER BY checkpoint_id, topic, topic_id, partition, start_offset

-- name: spans
-- By run, the earliest first (a run that is all pruned comes first), then by topic and partition.
SELECT checkpoint_id, topic, topic_id, partition, min(start_offset) AS start_offset,
  max(until_offset) AS until_offset, min(created_time_ms) AS since_ms,
  CAST(coalesce(sum(until_offset - start_offset) FILTER (WHERE batch_key IS NULL), 0) AS bigint)
    AS pruned,
  CAST(coalesce(sum(until_offset - start_offset)
    FILTER (WHERE batch_key IS NOT NULL AND status = 'success'), 0) AS bigint) AS processed,
  CAST(coalesce(sum(until_offset - start_offset) FILTER (WHERE status = 'dead'), 0) AS bigint)
    AS dead,
  CAST(coalesce(sum(until_offset - start_offset)
    FILTER (WHERE status NOT IN ('success', 'dead')), 0) AS bigint) AS open
FROM {covered}
GROUP BY checkpoint_id, topic, topic_id, partition
ORDER BY coalesce(min(min(created_time_ms)) OVER (PARTITION BY checkpoint_id), 0),
  checkpoint_id, topic, topic_id, partition

-- name: uneven
-- Ranges that do not begin at the end of the earlier ranges, or are not processed. `reached` is the
-- highest end of all earlier ranges of the partition.
SELECT ranges.*, batch.error_class, batch.error_message, batch.resolution, batch.progress,
  batch.planned_records
FROM (
  SELECT covered.*,
    max(until_offset) OVER (PARTITION BY checkpoint_id, topic, topic_id, partition
      ORDER BY start_offset, until_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
      AS reached,
    lag(until_offset) OVER (PARTITION BY checkpoint_id, topic, topic_id, partition
      ORDER BY start_offset, until_offset) AS before_until,
    lag(batch_key) OVER (PARTITION BY checkpoint_id, topic, topic_id, partition
      ORDER BY start_offset, until_offset) AS before_key
  FROM {covered}
) AS ranges
LEFT JOIN batch ON batch.batch_key = ranges.batch_key
WHERE ranges.reached <> ranges.start_offset OR ranges.status <> 'success'

-- name: runs
SELECT * FROM checkpoint
WHERE true
  AND gate = :gate  --? gate

-- name: several_runs
-- With only one run, no offset can be skipped between runs.
SELECT * FROM checkpoint
WHERE EXISTS (SELECT 1 FROM checkpoint AS other
    WHERE other.gate = checkpoint.gate AND other.topic = checkpoint.topic
      AND other.topic_id = checkpoint.topic_id
      AND other.checkpoint_id <> checkpoint.checkpoint_id)
  AND gate = :gate  --? gate

-- name: losses
-- An open or dead batch accounts for its offsets itself. A pruned batch is identified by the run
-- that has read the offsets.
SELECT lost.gate, lost.topic, lost.topic_id, lost.partition, lost.batch_key, lost.reason,
  CASE WHEN pruned.start_offset > lost.from_offset THEN pruned.start_offset
    ELSE lost.from_offset END AS start_offset,
  CASE WHEN pruned.until_offset < lost.until_offset THEN pruned.until_offset
    ELSE lost.until_offset END AS until_offset,
  coalesce(batch.checkpoint_id, pruned.checkpoint_id) AS checkpoint_id,
  pruned.gate IS NOT NULL AS is_pruned
FROM lost LEFT JOIN batch ON batch.batch_key = lost.batch_key
  LEFT JOIN pruned ON batch.batch_key IS NULL AND lost.batch_key <> ''
    AND pruned.gate = lost.gate AND pruned.topic = lost.topic AND pruned.topic_id = lost.topic_id
    AND pruned.partition = lost.partition AND pruned.start_offset < lost.until_offset
    AND pruned.until_offset > lost.from_offset
WHERE (lost.batch_key = '' OR pruned.gate IS NOT NULL OR batch.status = 'success')
  AND lost.gate = :gate  --? gate
ORDER BY lost.time_ms, lost.from_offset

-- name: accepted
SELECT accepted.*, from_offset AS start_offset FROM accepted
WHERE true
  AND gate = :gate  --? gate
ORDER BY time_ms, from_offset
