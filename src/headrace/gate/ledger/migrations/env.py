"""Alembic's entry script for upgrades of a ledger; `headrace.gate.ledger.ledger` calls it."""

from alembic import context

from headrace.gate.ledger.tables import VERSION_TABLE, metadata


def migrate() -> None:
    """Run the migrations on the caller's connection, in the caller's transaction."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        version_table=VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()


if __name__ == "env_py":  # Alembic's name for this module; any other import has no context.
    migrate()
