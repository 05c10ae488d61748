"""What Alembic runs: the migrations, on the connection and in the transaction that `upgrade` hands over."""

from __future__ import annotations

from alembic import context

from miniclaw_sessions.core.stores.sqlite.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
