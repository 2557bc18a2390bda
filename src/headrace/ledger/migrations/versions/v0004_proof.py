"""Keep which query stands behind a gate, the number of each run, and what proves a history."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the columns."""
    op.add_column("gate", sa.Column("query_owner", sa.Text()))
    op.add_column("gate", sa.Column("query_driver", sa.Text()))
    op.add_column("gate", sa.Column("query_read", sa.Text()))
    op.add_column("gate", sa.Column("query_described", sa.Text()))
    op.add_column("gate", sa.Column("query_checkpoint", sa.Text()))
    op.add_column("gate", sa.Column("query_run_id", sa.Text()))
    op.add_column("gate", sa.Column("query_since_ms", sa.BigInteger()))
    op.add_column("gate", sa.Column("query_until_ms", sa.BigInteger()))
    op.add_column("gate", sa.Column("query_begins", sa.BigInteger()))
    op.add_column(
        "gate", sa.Column("sequence", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.add_column(
        "gate", sa.Column("lost_offsets", sa.BigInteger(), nullable=False, server_default="0")
    )
    _tell_losses_of_batches_apart()
    _make_checkpoint()
    _keep_what_is_there()


def _tell_losses_of_batches_apart() -> None:
    """Put the batch into the key of a loss; SQLite makes the table anew for it."""
    with op.batch_alter_table("lost") as lost:
        lost.add_column(sa.Column("schedule_id", sa.Text(), nullable=False, server_default=""))
        lost.add_column(sa.Column("reason", sa.Text()))
        lost.drop_constraint("pk_lost", type_="primary")
        lost.create_primary_key(
            "pk_lost", ["gate", "topic", "partition", "from_offset", "topic_id", "schedule_id"]
        )
    op.create_index("ix_lost_schedule_id", "lost", ["schedule_id"])


def _make_checkpoint() -> None:
    op.create_table(
        "checkpoint",
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("start_offsets", sa.Text(), nullable=False),
        sa.Column("until_offsets", sa.Text(), nullable=False),
        sa.Column("offsets", sa.BigInteger(), nullable=False),
        sa.Column("begun", sa.Text()),
        sa.Column("begins", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("gate", "run_id", "topic", "topic_id", name="pk_checkpoint"),
        sa.ForeignKeyConstraint(["gate"], ["gate.name"], name="fk_checkpoint_gate"),
    )


def _keep_what_is_there() -> None:
    """What the batches of an older ledger come to: from here on, none of them can disappear."""
    connection = op.get_bind()
    connection.execute(sa.text(_COUNT_LOSSES))
    kept: dict[tuple[str, str, str, str], tuple[dict[int, int], dict[int, int], list[int]]] = {}
    for row in connection.execute(sa.text(_RANGES_THERE)):
        place = row.gate, row.run_id, row.topic, row.topic_id
        starts, untils, offsets = kept.setdefault(place, ({}, {}, []))
        starts[row.partition], untils[row.partition] = row.first, row.last
        offsets.append(int(row.offsets))
    for place, (starts, untils, offsets) in kept.items():
        values = [*place, json.dumps(starts), json.dumps(untils), sum(offsets)]
        connection.execute(sa.text(_KEEP), dict(zip(_KEPT, values, strict=True)))


_COUNT_LOSSES = """
    UPDATE gate SET lost_offsets = (
        SELECT coalesce(sum(until_offset - from_offset), 0) FROM lost WHERE lost.gate = gate.name
    )
"""

_RANGES_THERE = """
    SELECT gate, run_id, topic, topic_id, partition, min(start_offset) AS first,
           max(until_offset) AS last, sum(until_offset - start_offset) AS offsets
    FROM (
        SELECT gate, run_id, topic, coalesce(topic_id, '') AS topic_id, partition, start_offset,
               until_offset
        FROM control JOIN failure ON failure.schedule_id = control.schedule_id
        WHERE parent IS NULL
        UNION ALL
        SELECT gate, run_id, topic, topic_id, partition, start_offset, until_offset FROM pruned
    ) AS there
    GROUP BY gate, run_id, topic, topic_id, partition
"""

_KEPT = ("gate", "run_id", "topic", "topic_id", "starts", "untils", "offsets")
_KEEP = """
    INSERT INTO checkpoint
    SELECT :gate, :run_id, :topic, :topic_id, :starts, :untils, :offsets, begun, begins
    FROM gate WHERE name = :gate
"""
