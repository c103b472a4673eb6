"""Structured logs on standard error: for people on a terminal, JSON elsewhere, secrets taken out.

structlog is loaded and set up with the first line. A start that has nothing to say until it consumes does not
wait for it, and rich, which it imports where it finds it, is kept from it: for tracebacks that hive never
prints, it takes 9 MB.
"""

import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TextIO, cast

from hive import logger
from hive.settings import Log

REDACTED: Final = "[redacted]"
DEPTH: Final = 6

_SECRET_FIELD = re.compile(
    r"(^|_)(password|passwd|secret|token|dsn|api_?key|authorization|credentials?|cookie|private_key)($|_)",
    re.IGNORECASE,
)
_SECRET_TEXT: Final = (
    # postgresql://user:password@host, redis://:password@host
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s@]+(@)", re.IGNORECASE), rf"\1{REDACTED}\2"),
    # ?password=…, host=… password=…, token: …
    (
        re.compile(
            r"\b((?:password|passwd|secret|token|api_?key)\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&,;'\"]+)", re.I
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b(bearer\s+)[a-z0-9._~+/-]{8,}=*", re.IGNORECASE), rf"\1{REDACTED}"),
)

Processor = Callable[[Any, str, MutableMapping[str, Any]], Any]


def prepare(settings: Log) -> None:
    """Have ``configure`` called with the first line, hive's own or a library's."""
    logger.before_first_line(partial(configure, settings))
    root = logging.getLogger()
    root.handlers[:] = [_Awaiting(partial(configure, settings))]
    root.setLevel(_standard_level(settings))


class _Awaiting(logging.Handler):
    """Stands where the real handler will, until a library logs a line."""

    def __init__(self, set_up: Callable[[], None]) -> None:
        super().__init__()
        self._set_up = set_up

    def emit(self, record: logging.LogRecord) -> None:
        self._set_up()
        logging.getLogger().handle(record)


def configure(settings: Log, *, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging, both into ``stream`` (standard error)."""
    with _without("rich"):
        import structlog

    target = stream or sys.stderr
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    as_json = settings.format == "json" or (settings.format == "auto" and not target.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        finish: list[Processor] = [
            structlog.processors.format_exc_info,
            redact,
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        finish = [
            structlog.processors.format_exc_info,
            redact,
            structlog.dev.ConsoleRenderer(colors=target.isatty()),
        ]
    structlog.configure(
        processors=[*shared, *finish],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
    # Libraries' own log lines come out in the same form.
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_standard_level(settings))


def _standard_level(settings: Log) -> int:
    """Only libraries' warnings: their news is not ours."""
    return max(logging.getLevelNamesMapping()[settings.level.upper()], logging.WARNING)


@contextmanager
def _without(module: str) -> Generator[None]:
    """Let ``module`` seem missing to what is imported inside."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # what makes an import raise ImportError
    try:
        yield
    finally:
        del sys.modules[module]


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Take out what looks like a secret: fields by their name, passwords in addresses, bearer tokens."""
    for key, value in event.items():
        event[key] = _clean(key, value, DEPTH)
    return event


def redact_text(text: str) -> str:
    """``text`` without the secrets that stand in it."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _clean(key: str, value: Any, depth: int) -> Any:
    if _SECRET_FIELD.search(key) and value is not None and not isinstance(value, bool):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if depth == 0 or value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        return {inner: _clean(str(inner), held, depth - 1) for inner, held in mapping.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = cast(list[Any], value)
        return [_clean("", held, depth - 1) for held in items]
    return redact_text(str(value))
