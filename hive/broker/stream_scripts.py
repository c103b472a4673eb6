"""The Lua scripts beside this file, in ``lua/``, as typed calls.

Each is one round trip, changes one queue atomically, and may be run again: a repeated call finds the record
in its new state and leaves it. Together they are one library of server-side functions, named after what is
in it, so that processes of two versions share a server. It is sent when the server does not know it: the
first time, or after a restart without its data. Where a server has no functions, or does not permit them, the
same text is run by EVAL, which makes all functions anew each time: 20 to 50 µs more a call.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final

from redis.exceptions import NoPermissionError, NoScriptError, OutOfMemoryError, ResponseError

from hive.broker.stream_keys import QueueKeys
from hive.broker.stream_link import Argument, StreamLink
from hive.logger import get_logger
from hive.store.redis import RedisStore

log = get_logger(__name__)

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
    "announce",
    "withdraw",
    "pause",
    "weigh",
    "kinds",
    "backlog",
    "position",
    "heal",
)
SHARED: Final = ("record", "state", "window", "hand", "call")
_WRONG_TYPE: Final = "WRONGTYPE"
_NO_FUNCTION: Final = "Function not found"
_LOADED: Final = "already exists"


_ALLOWED: Final = "allow-oom"
_REGISTER: Final = """
local function register(script, name, flags)
  redis.register_function{function_name = name, flags = flags, callback = function(keys, arguments)
    if not begin then
      begin, scripts = make()
    end
    begin(keys, arguments)
    return scripts[script]()
  end}
end
"""


class _Library:
    """The text of all scripts: as functions of the server, or each by itself."""

    def __init__(self) -> None:
        folder = files("hive.broker") / "lua"
        text = {name: (folder / f"{name}.lua").read_text("utf-8") for name in (*SHARED, *NAMES)}
        # Made at the first call: while it is loaded, a library has none of Lua's own functions.
        self._make = "\n".join(
            (
                "local function make()",
                *(text[name] for name in SHARED),
                "local scripts = {}",
                *(f"function scripts.{name}()\n{text[name]}\nend" for name in NAMES),
                "return begin, scripts\nend\nlocal begin, scripts",
            )
        )
        self.name = f"hive_{sha1(self._make.encode(), usedforsecurity=False).hexdigest()[:16]}"
        self.functions = {name: f"{self.name}_{name}" for name in NAMES}

    @property
    def source(self) -> bytes:
        """What FUNCTION LOAD takes. Only publishing is refused while memory is full: the rest makes room."""
        return "\n".join(
            (
                f"#!lua name={self.name}",
                self._make,
                _REGISTER,
                *(
                    f"register('{name}', '{function}', {{{'' if name == 'publish' else repr(_ALLOWED)}}})"
                    for name, function in self.functions.items()
                ),
            )
        ).encode()

    def script(self, name: str, *, flags: bool) -> bytes:
        """What EVAL takes for one of them. ``flags``: the server knows them, as it knows functions."""
        head = f"#!lua flags={'' if name == 'publish' else _ALLOWED}\n" if flags else ""
        return f"{head}{self._make} = make()\nbegin(KEYS, ARGV)\nreturn scripts.{name}()".encode()


class StreamScripts:
    """What can be done to a stream queue. Every method raises StoreDown when Redis is away."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.link = StreamLink(store)
        self._library = _library()
        self._without_functions = False
        self._flags = False  # whether the server has functions, if not for us

    async def _run(self, name: str, keys: QueueKeys, arguments: Sequence[Argument]) -> Any:
        try:
            return await self._send(name, keys, arguments)
        except ResponseError as error:
            if not str(error).startswith(_WRONG_TYPE):
                raise
            log.error("stream.foreign_key", queue=keys.queue, cause=str(error)[:200])
        await self._heal(keys)
        return await self._send(name, keys, arguments)

    async def _send(self, name: str, keys: QueueKeys, arguments: Sequence[Argument]) -> Any:
        given = (1, keys.tag, *arguments)
        with self._store.translating(f"running {name} on {keys.queue}"):
            if self._without_functions:
                return await self._evaluate(name, given)
            function = ("FCALL", self._library.functions[name], *given)
            try:
                return await self.link.call(function)
            except ResponseError as error:
                if not _says(error, _NO_FUNCTION) and not _refuses(error):
                    raise
            try:
                await self._load()
                return await self.link.call(function)
            except OutOfMemoryError:
                # There may be no room for the library: what makes some must not wait for it.
                self._flags = True
                return await self._evaluate(name, given)
            except ResponseError as error:
                if not _refuses(error):
                    raise
                log.warning("stream.without_functions", cause=str(error)[:200])
                self._flags = isinstance(error, NoPermissionError)
            self._without_functions = True
            return await self._evaluate(name, given)

    async def _load(self) -> None:
        try:
            await self.link.call(("FUNCTION", "LOAD", self._library.source))
        except ResponseError as error:
            if not _says(error, _LOADED):  # by another process, a moment ago
                raise

    async def _evaluate(self, name: str, given: tuple[Argument, ...]) -> Any:
        source = self._library.script(name, flags=self._flags)
        try:
            return await self.link.call(("EVALSHA", sha1(source, usedforsecurity=False).hexdigest(), *given))
        except NoScriptError:
            return await self.link.call(("EVAL", source, *given))

    async def _heal(self, keys: QueueKeys) -> None:
        """Give up keys that hold something else than they should: rare enough for a walk over all names."""
        arguments: list[Argument] = []
        with self._store.translating("looking for foreign keys"):
            for prefix, kind in keys.made.items():
                async for name in self._store.client.scan_iter(f"{prefix}*", count=1_000):
                    arguments += (name, kind)
        await self._send("heal", keys, arguments)

    async def publish(
        self,
        keys: QueueKeys,
        arguments: Sequence[Argument],
        *,
        notify: bool,
        most: int | None,
        following: int,
    ) -> list[bytes] | int:
        """For each message: empty when accepted, else the id that holds its key. A number: so many wait.

        ``most``: how many may. ``following``: how many messages of the same call come in later scripts.
        """
        given = (int(notify), "" if most is None else most, following, *arguments)
        return await self._run("publish", keys, given)

    async def claim(self, keys: QueueKeys, arguments: Sequence[Argument]) -> list[Any]:
        """[0] when a block of fences is needed, else what ``deliveries_of`` takes."""
        return await self._run("claim", keys, arguments)

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
        self, keys: QueueKeys, owner: bytes, child_limit: int, arguments: Sequence[Argument]
    ) -> tuple[int, bytes]:
        """How many were given up, and a letter for each verdict."""
        given_up, verdicts = await self._run("settle", keys, (owner, child_limit, *arguments))
        return given_up, verdicts

    async def flagged(self, keys: QueueKeys, arguments: Sequence[Argument]) -> list[int]:
        """The positions of those whose cancellation was asked for."""
        return await self._run("flagged", keys, arguments)

    async def cancel(self, keys: QueueKeys, tenant: str, ids: Sequence[bytes], *, again: bool) -> int:
        """How many were touched; ``tenant`` "*" for any. ``again``: those flagged before count as well."""
        return await self._run("cancel", keys, (tenant, int(again), *ids))

    async def sweep(
        self,
        keys: QueueKeys,
        limit: int,
        hive_limit: int,
        *,
        dead_owner: tuple[bytes, str] = (b"", ""),
        idle_ms: int | str = "",
        expire_leases: bool = True,
    ) -> tuple[int, int, int, int, int]:
        """Due, brought back, given up, dead letters to be written, found wrong."""
        due, back, given_up, staged, wrong = await self._run(
            "sweep", keys, (limit, hive_limit, *dead_owner, idle_ms, int(expire_leases))
        )
        return due, back, given_up, staged, wrong

    async def bury(self, keys: QueueKeys, marks: Sequence[bytes]) -> None:
        """Remove what Postgres has."""
        await self._run("bury", keys, marks)

    async def reject(self, keys: QueueKeys, arguments: Sequence[Argument]) -> None:
        """Give up deliveries that could not be read."""
        await self._run("reject", keys, arguments)

    async def holders(self, keys: QueueKeys, dedup_keys: Sequence[bytes]) -> list[bytes]:
        """Who holds each key, or empty."""
        return await self._run("holders", keys, dedup_keys)

    async def depth(self, keys: QueueKeys) -> tuple[int, int, int, int, int]:
        """Waiting, delayed, running, the oldest one's age in ms or -1, expired so far."""
        waiting, delayed, running, oldest, expired = await self._run("depth", keys, ())
        return waiting, delayed, running, oldest, expired

    async def announce(self, keys: QueueKeys, owner: bytes, slots: int, lease_ms: int) -> None:
        """Note an owner's live slots."""
        await self._run("announce", keys, (owner, slots, lease_ms))

    async def withdraw(self, keys: QueueKeys, owner: bytes) -> None:
        """Push nothing to an owner before it asks again."""
        await self._run("withdraw", keys, (owner,))

    async def pause(self, keys: QueueKeys, *, paused: bool) -> None:
        """Pause or resume."""
        await self._run("pause", keys, (int(paused),))

    async def weigh(self, keys: QueueKeys, weights: Sequence[Argument]) -> None:
        """Set the weights: tenant, weight, tenant, …"""
        await self._run("weigh", keys, weights)

    async def kinds(
        self, keys: QueueKeys, last: bytes, tenant: str, task: str, limit: int
    ) -> tuple[bytes, list[bytes]]:
        """A page of the pairs of tenant and task that there are; "*" for any. Empty when it was the last."""
        reached, *found = await self._run("kinds", keys, (last, tenant, task, limit))
        return reached, found

    async def backlog(self, keys: QueueKeys, after: str, limit: int) -> list[Any]:
        """Four for each tenant: id, waiting, running, the oldest one's age in ms or -1."""
        return await self._run("backlog", keys, (after, limit))

    async def position(self, keys: QueueKeys, id: bytes, most: int) -> int:
        """How many are before it, or -1."""
        return await self._run("position", keys, (id, most))


_library = lru_cache(_Library)


def _says(error: ResponseError, text: str) -> bool:
    return text in str(error)


def _refuses(error: ResponseError) -> bool:
    """Whether the server has no functions, or not for this user."""
    return isinstance(error, NoPermissionError) or "unknown command" in str(error).lower()
