"""Tenants that rest: runs the .sql file of the same name."""

from hive.store.migrations.environment import run_sql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_sql(__file__)
