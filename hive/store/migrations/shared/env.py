"""Alembic's entry into this set."""

from hive.store.migrations.environment import run

run()
