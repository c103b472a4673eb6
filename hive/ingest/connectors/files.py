"""The ``files`` connector: a folder, or one file, on hive's own host.

    walk (sorted) ─▶ 200 at a time: stat, ask what is known ─▶ unchanged: counted
                                                           └─▶ else: open, check its real place, read, parse

Nothing is read outside the roots, whatever symbolic links say; hive's state folder never. One file that
cannot be read is a document failure; only the folder itself is the source's.
"""

import errno
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic import BaseModel

from hive.ingest.connectors.files_config import FilesConfig
from hive.ingest.connectors.files_fence import Fence, OutsideFence, open_inside
from hive.ingest.connectors.files_walk import Found, Parts, Passed, Selection, Unlistable, walk
from hive.ingest.connectors.port import (
    Checkpoint,
    DocumentFailure,
    Item,
    Known,
    Pause,
    SourceDocument,
    SourceError,
    Unchanged,
)
from hive.ingest.parsing.parsed import PARSING_VERSION, ParseFailure
from hive.ingest.parsing.reader import format_of, read

Json = Any

ASK_AT_ONCE: Final = 200
CHECKPOINT_DOCUMENTS: Final = 16
CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
_REASONS = {
    errno.ENOENT: ("not_found", "vanished while the folder was being read"),
    errno.ENOTDIR: ("not_found", "vanished while the folder was being read"),
    errno.EACCES: ("forbidden", "may not be read by the user that fetch children run as"),
    errno.EPERM: ("forbidden", "may not be read by the user that fetch children run as"),
    errno.ELOOP: ("unreadable", "its symbolic links lead in a circle"),
}


class FilesConnector:
    """Registered as ``files``. Needs no credential."""

    kind = "files"
    Config: type[BaseModel] = FilesConfig

    def items(
        self, config: BaseModel, credential: Mapping[str, Json] | None, checkpoint: Json | None, known: Known
    ) -> AsyncIterator[Item]:
        """Documents in the order of their paths; a checkpoint behind 16 documents, 4 MB, or 200 files seen.

        Raises SourceError: not_found, forbidden, refused, outside_roots, unreadable.
        """
        del credential
        assert isinstance(config, FilesConfig)
        return _Crawl(config).items(checkpoint, known)


class _Crawl:
    def __init__(self, config: FilesConfig) -> None:
        self._config = config
        self._fence = Fence(config.roots, config.refused)
        self._selection = Selection(config.include, config.exclude)
        # A checkpoint of other settings points into another walk.
        settings = repr((config.path, config.include, config.exclude)).encode("utf-8", "surrogatepass")
        self._walk_id = hashlib.sha256(settings).hexdigest()[:16]
        self._root = b""

    async def items(self, checkpoint: Json | None, known: Known) -> AsyncIterator[Item]:
        single = self._enter()
        waiting: list[Found] = []
        found = (
            iter([Found((single,))]) if single else walk(self._root, self._selection, self._after(checkpoint))
        )
        while True:
            try:
                step = next(found, None)
            except OSError as error:
                raise self._source_error(error) from error
            match step:
                case Found():
                    waiting.append(step)
                case Unlistable():
                    # What waits comes before it, so that no checkpoint passes over it.
                    async for item in self._look_at(waiting, known):
                        yield item
                    waiting.clear()
                    yield self._failure(step.parts, step.error)
                case Passed():
                    yield Pause(note=f"looked at {step.entries} more entries")
                case None:
                    break
            if len(waiting) >= ASK_AT_ONCE:
                async for item in self._look_at(waiting, known):
                    yield item
                waiting.clear()
        async for item in self._look_at(waiting, known):
            yield item

    def _enter(self) -> bytes | None:
        """Check the path; the name of the file if it is one."""
        path = os.fsencode(self._config.path)
        real = os.path.realpath(path)  # first of all, so that nobody learns what exists outside the roots
        if self._fence.is_refused(real):
            raise SourceError(
                "refused", f"{self._config.path} lies in hive's state folder, which is never read"
            )
        if not self._fence.allows(real):
            raise SourceError(
                "outside_roots",
                f"{self._config.path} lies below none of the folders in connectors.files.roots",
            )
        try:
            state = os.stat(real)
        except OSError as error:
            raise self._source_error(error) from error
        if stat.S_ISDIR(state.st_mode):
            self._root = path
            return None
        if not stat.S_ISREG(state.st_mode):
            raise SourceError("unreadable", f"{self._config.path} is neither a folder nor a file")
        self._root, name = os.path.split(path)
        return name

    def _source_error(self, error: OSError) -> SourceError:
        code, reason = _REASONS.get(error.errno or 0, ("unreadable", error.strerror or str(error)))
        if code == "not_found":
            reason = "does not exist"
        # A network file system comes back; a name that is not there does so too seldom to wait for it.
        transient = error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN)
        return SourceError(code, f"{self._config.path} {reason}", transient=transient)

    def _after(self, checkpoint: Json | None) -> Parts | None:
        state = cast(Mapping[str, Json], checkpoint) if isinstance(checkpoint, dict) else {}
        if state.get("walk") != self._walk_id:
            return None
        return tuple(unquote_to_bytes(part) for part in str(state["after"]).split("/"))

    def _checkpoint(self, parts: Parts) -> Checkpoint:
        # Percent-encoded: a name need not be text, and JSON must be.
        after = "/".join(quote_from_bytes(part, safe="") for part in parts)
        return Checkpoint(state={"walk": self._walk_id, "after": after})

    async def _look_at(self, waiting: Sequence[Found], known: Known) -> AsyncIterator[Item]:
        if not waiting:
            return
        stored = await known([_url(self._path(found.parts)) for found in waiting])
        documents = size = unchanged = 0
        for found in waiting:
            item = self._item(found, stored.get(_url(self._path(found.parts))))
            if item is None:
                continue
            if isinstance(item, Unchanged):
                unchanged += item.count
                continue
            if unchanged:
                yield Unchanged(count=unchanged)
                unchanged = 0
            yield item
            documents += 1
            if isinstance(item, SourceDocument):
                size += sum(len(section.body) for section in item.sections)
            if documents >= CHECKPOINT_DOCUMENTS or size >= CHECKPOINT_BYTES:
                yield self._checkpoint(found.parts)
                documents = size = 0
        if unchanged:
            yield Unchanged(count=unchanged)
        yield self._checkpoint(waiting[-1].parts)

    def _item(
        self, found: Found, stored: Mapping[str, Json] | None
    ) -> SourceDocument | DocumentFailure | Unchanged | None:
        """What a file gives; None: it is no document (not a regular file, or a link that leads outside)."""
        path = self._path(found.parts)
        try:
            state = os.stat(path)
            if not stat.S_ISREG(state.st_mode):
                return None  # never opened: opening a device or a pipe may do something
            if stored is not None and _same(stored, state):
                return Unchanged(count=1)
            descriptor, state = open_inside(path, self._fence)
        except OutsideFence:
            return None
        except OSError as error:
            return self._failure(found.parts, error)
        with open(descriptor, "rb") as stream:
            limit = self._config.max_document_bytes
            if state.st_size > limit:
                return self._refused(path, "too_large", _too_large(state.st_size, limit))
            try:
                data = stream.read(limit + 1)
            except OSError as error:
                return self._failure(found.parts, error)
        if len(data) > limit:  # it grew under our hands
            return self._refused(path, "too_large", _too_large(len(data), limit))
        return self._document(path, data, state, stored)

    def _document(
        self, path: bytes, data: bytes, state: os.stat_result, stored: Mapping[str, Json] | None
    ) -> SourceDocument | DocumentFailure:
        name = os.fsdecode(os.path.basename(path))
        try:
            parsed = read(data, name)
        except ParseFailure as failure:
            return self._refused(path, failure.code, failure.summary)
        revision = _revision(state, stored)
        return SourceDocument(
            source_id=_url(path),
            title=parsed.title,
            link=_url(path),
            sections=parsed.sections,
            revision=revision,
            source_state={**_state(state), "revision": revision},
            metadata={"format": format_of(name) or "text", **parsed.metadata},
        )

    def _failure(self, parts: Parts, error: OSError) -> DocumentFailure:
        code, reason = _REASONS.get(error.errno or 0, ("unreadable", error.strerror or str(error)))
        return self._refused(self._path(parts), code, reason)

    def _refused(self, path: bytes, code: str, summary: str) -> DocumentFailure:
        return DocumentFailure(source_id=_url(path), link=_url(path), code=code, summary=summary)

    def _path(self, parts: Parts) -> bytes:
        return os.path.join(self._root, *parts)


def _url(path: bytes) -> str:
    return "file://" + quote_from_bytes(path, safe="/-._~!$&'()*+,;=:@")


def _too_large(size: int, limit: int) -> str:
    return f"{size:,} bytes; up to {limit:,} are read (documents.max_file_mb)"


def _state(state: os.stat_result) -> dict[str, Json]:
    return {
        "parsing": PARSING_VERSION,
        "mtime_ns": state.st_mtime_ns,
        "ctime_ns": state.st_ctime_ns,
        "size": state.st_size,
    }


def _same(stored: Mapping[str, Json], state: os.stat_result) -> bool:
    """Times and size as stored. ctime too: tools set mtime back after an edit; none can set ctime."""
    return all(stored.get(key) == value for key, value in _state(state).items())


def _revision(state: os.stat_result, stored: Mapping[str, Json] | None) -> int:
    """A number that rises with every edit.

    mtime does not: a restored older file has its old one. ctime does, since the kernel sets it to the clock
    at each change of the file or of its place in the folder; but clocks are set back, and a copied disk may
    bring ctimes of another clock. A document whose stored revision lay ahead would then never be replaced.
    So it is one more than what is stored, where ctime alone would not rise.
    """
    before = stored.get("revision") if stored is not None else None
    return max(state.st_ctime_ns, before + 1) if isinstance(before, int) else state.st_ctime_ns
