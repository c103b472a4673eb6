"""`jobs` and `dead` with or without a running hive."""

from collections.abc import Generator
from contextlib import contextmanager

from supervisor.cli.api import Api
from supervisor.cli.failure import NotRunning
from supervisor.cli.output import note
from supervisor.cli.place import Place


@contextmanager
def api_or_database(place: Place) -> Generator[Api]:
    """The API of the running hive; if there is none, one of our own over its database."""
    api = Api(place)
    try:
        api.get("/livez", seconds=5)
    except NotRunning as absent:
        # Imported only here: it brings all of hive along.
        from supervisor.cli.offline_serving import served_here

        with served_here(place, absent) as own:
            note("no hive is running: looking into its database")
            yield own
        return
    yield api
