"""What the ``files`` connector is told: by its owner, and by hive. Light: the parent imports it too."""

import os
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


def _pattern(text: str) -> str:
    if not text.strip() or "\x00" in text:
        raise ValueError("a pattern must not be empty")
    if text.startswith("/") or ".." in text.split("/"):
        raise ValueError("patterns are relative to path, without '..'")
    return text


def _absolute(text: str) -> str:
    if not text.strip() or "\x00" in text:
        raise ValueError("is empty or contains a NUL byte")
    if not os.path.isabs(text):
        raise ValueError("must be an absolute path")
    return os.path.normpath(text)


Pattern = Annotated[str, AfterValidator(_pattern)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class FilesSource(BaseModel):
    """What its owner may say. ``path``: a folder or a single file.

    Patterns are relative to the folder: ``*`` and ``?`` stay within a name, ``**`` crosses folders, and a
    pattern without a slash fits names at any depth. ``include`` replaces the default (what hive parses);
    ``exclude`` wins over it, and leaves out all below a folder it fits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: AbsolutePath
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()


class FilesConfig(FilesSource):
    """What the child gets: hive adds where it may read. ``refused`` wins over ``roots``."""

    roots: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    max_document_bytes: Count = 50 * 1024 * 1024
