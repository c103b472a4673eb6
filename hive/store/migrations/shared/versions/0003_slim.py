"""Narrower entries for what waits: runs the .sql file of the same name."""

from hive.store.migrations.environment import run_sql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_sql(__file__)
