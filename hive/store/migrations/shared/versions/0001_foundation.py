"""The foundation: runs the .sql file of the same name."""

from hive.store.migrations.environment import run_sql

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_sql(__file__)
