"""Text that Postgres can hold: without NUL, without lone surrogates."""

from collections.abc import Mapping
from typing import Any, cast


def clean(text: str, longest: int | None = None) -> str:
    """``text`` without what no database accepts, cut to ``longest`` characters."""
    if longest is not None and len(text) > longest:
        text = text[:longest]
    if "\x00" in text:
        text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def clean_json(value: Any) -> Any:
    """``value`` (anything json.loads gives) with every string in it cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return {clean(str(key)): clean_json(entry) for key, entry in pairs}
    if isinstance(value, (list, tuple)):
        return [clean_json(entry) for entry in cast(list[Any], value)]
    return value
