"""The stores hive starts itself when it is given no addresses: PostgreSQL 18 with pgvector, and Valkey 9.

Both come from wheels (the extra ``embedded``), live under the state folder, and listen on a Unix socket with
a password. A server dies with the hive that started it (PDEATHSIG); what a killed hive left behind all the
same is recognised by its working directory and ended before the next start::

    state folder
    ├── postgres.lock  postgres.password      hive's own, 0600
    ├── postgres/      data/ run/ server.log  the server's, 0700
    ├── valkey.lock    valkey.password
    └── valkey/        appendonlydir/ run/ server.log

Where hive is root, the servers run as an unprivileged user; PostgreSQL insists on it.
"""

from hive.embedded.postgres import EmbeddedPostgres
from hive.embedded.valkey import EmbeddedValkey

__all__ = ["EmbeddedPostgres", "EmbeddedValkey"]
