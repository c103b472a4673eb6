"""The Lua scripts beside this file, in ``lua/``, as typed calls.

Each is one round trip, changes one queue atomically, and may be run again: a repeated call finds the record
in its new state and leaves it. ``record.lua`` is put before each of them.
"""

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final

from redis.exceptions import NoScriptError

from hive.broker.stream_keys import QueueKeys
from hive.store.redis import RedisStore

Argument = bytes | str | int

NAMES: Final = (
    "publish",
    "claim",
    "fence",
    "renew",
    "started",
    "progress",
    "settle",
    "flagged",
    "cancel",
    "sweep",
    "bury",
    "reject",
    "holders",
    "depth",
)


class _Script:
    """One script: run by its digest, sent whole when the server does not know it."""

    def __init__(self, name: str) -> None:
        folder = files("hive.broker") / "lua"
        self.source = "\n".join(
            (folder / f"{part}.lua").read_text("utf-8") for part in ("record", name)
        ).encode()
        self.digest = sha1(self.source, usedforsecurity=False).hexdigest()


class StreamScripts:
    """What can be done to a stream queue. Every method raises StoreDown when Redis is away."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._scripts = {name: _Script(name) for name in NAMES}

    async def _run(self, name: str, keys: QueueKeys, arguments: Sequence[Argument]) -> Any:
        script = self._scripts[name]
        given = (len(keys.scripts), *keys.scripts, *arguments)
        with self._store.translating(f"running {name} on {keys.queue}"):
            try:
                return await self._store.client.execute_command("EVALSHA", script.digest, *given)
            except NoScriptError:
                return await self._store.client.execute_command("EVAL", script.source, *given)

    async def publish(self, keys: QueueKeys, arguments: Sequence[Argument]) -> list[bytes]:
        """For each message: empty when accepted, else the id that holds its key."""
        return await self._run("publish", keys, arguments)

    async def claim(self, keys: QueueKeys, owner: str, limit: int, lease_ms: int) -> list[Any]:
        """[0] when a block of fences is needed, else [1, given up, eight fields a message …]."""
        return await self._run("claim", keys, (owner, limit, lease_ms))

    async def set_fences(self, keys: QueueKeys, first: int, end: int) -> None:
        """Take a reserved block, unless a higher one stands."""
        await self._run("fence", keys, (first, end))

    async def renew(self, keys: QueueKeys, lease_ms: int, arguments: Sequence[Argument]) -> list[int]:
        """The positions of the lost ones."""
        return await self._run("renew", keys, (lease_ms, *arguments))

    async def mark_started(self, keys: QueueKeys, arguments: Sequence[Argument]) -> None:
        """Note that handlers were entered."""
        await self._run("started", keys, arguments)

    async def progress(self, keys: QueueKeys, arguments: Sequence[Argument]) -> bool:
        """False if the fence no longer holds."""
        return bool(await self._run("progress", keys, arguments))

    async def settle(
        self, keys: QueueKeys, owner: str, child_limit: int, arguments: Sequence[Argument]
    ) -> tuple[int, list[bytes]]:
        """How many were given up, and a verdict for each."""
        given_up, *verdicts = await self._run("settle", keys, (owner, child_limit, *arguments))
        return given_up, verdicts

    async def flagged(self, keys: QueueKeys, arguments: Sequence[Argument]) -> list[int]:
        """The positions of those whose cancellation was asked for."""
        return await self._run("flagged", keys, arguments)

    async def cancel(self, keys: QueueKeys, tenant: str, ids: Sequence[str]) -> int:
        """How many were touched; ``tenant`` "*" for any."""
        return await self._run("cancel", keys, (tenant, *ids))

    async def sweep(
        self,
        keys: QueueKeys,
        limit: int,
        hive_limit: int,
        *,
        dead_owner: str = "",
        idle_ms: int | str = "",
        expire_leases: bool = True,
    ) -> tuple[int, int, int, int]:
        """Due, brought back, given up, dead letters to be written."""
        due, back, given_up, staged = await self._run(
            "sweep", keys, (limit, hive_limit, dead_owner, idle_ms, int(expire_leases))
        )
        return due, back, given_up, staged

    async def bury(self, keys: QueueKeys, arguments: Sequence[Argument]) -> None:
        """Remove what Postgres has."""
        await self._run("bury", keys, arguments)

    async def reject(self, keys: QueueKeys, arguments: Sequence[Argument]) -> None:
        """Give up deliveries that could not be read."""
        await self._run("reject", keys, arguments)

    async def holders(self, keys: QueueKeys, dedup_keys: Sequence[str]) -> list[bytes]:
        """Who holds each key, or empty."""
        return await self._run("holders", keys, dedup_keys)

    async def depth(self, keys: QueueKeys) -> tuple[int, int, int, int, int]:
        """Waiting, delayed, running, the oldest one's age in ms or -1, expired so far."""
        waiting, delayed, running, oldest, expired = await self._run("depth", keys, ())
        return waiting, delayed, running, oldest, expired
