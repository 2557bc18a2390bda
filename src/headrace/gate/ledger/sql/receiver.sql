-- Receivers: one row per lane, rewritten about once a second.

-- name: heartbeat
INSERT INTO receiver (gate, journal_id, lane, journal, owner, started_ms, seen_ms, limit_per_s,
  most_per_s, records_per_s, records, bytes, buffered_bytes, waiting_records, refusing, rejected)
VALUES (:gate, :journal_id, :lane, :journal, :owner, :started_ms, :seen_ms, :limit_per_s,
  :most_per_s, :records_per_s, :records, :bytes, :buffered_bytes, :waiting_records, :refusing,
  :rejected)
ON CONFLICT (gate, journal_id, lane) DO UPDATE SET journal = excluded.journal,
  owner = excluded.owner, started_ms = excluded.started_ms, seen_ms = excluded.seen_ms,
  limit_per_s = excluded.limit_per_s, most_per_s = excluded.most_per_s,
  records_per_s = excluded.records_per_s, records = excluded.records, bytes = excluded.bytes,
  buffered_bytes = excluded.buffered_bytes, waiting_records = excluded.waiting_records,
  refusing = excluded.refusing, rejected = excluded.rejected

-- name: forget
DELETE FROM receiver WHERE gate = :gate AND seen_ms < :before_ms

-- name: deregister
DELETE FROM receiver
WHERE gate = :gate AND journal_id = :journal_id AND lane = :lane AND owner = :owner

-- name: receivers
SELECT * FROM receiver
WHERE true
  AND gate = :gate  --? gate
  AND gate IN :names  --? names
  AND seen_ms >= :since_ms  --? since_ms
ORDER BY journal, lane, gate, owner

-- name: stream
-- State that the receivers of a gate share: the gate's rate, and its position in this journal.
SELECT gate.rate_per_s, gate.interval_ms, position.until_offsets,
  gate.sink_outage IS NOT NULL AND gate.query_until_ms > {now} AS waits
FROM gate LEFT JOIN position ON position.gate = gate.name AND position.topic_id = :journal_id
WHERE gate.name = :gate
