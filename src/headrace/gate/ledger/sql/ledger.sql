-- name: now
SELECT {now}

-- name: version
-- The schema's version, as Alembic keeps it.
SELECT version_num FROM headrace_version
