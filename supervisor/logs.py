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
    """As ``configure``, but with the first line, hive's own or a library's.

    What is set up otherwise until then stands: task modules add handlers, or give structlog a form of theirs.
    """
    handler = _Awaiting(settings)
    logger.before_first_line(handler.load)
    _hand_to(handler, settings)


def configure(settings: Log, *, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging, both into ``stream`` (standard error)."""
    _hand_to(_set_up(settings, stream or sys.stderr, anew=True), settings)


def _hand_to(handler: logging.Handler, settings: Log) -> None:
    """Only libraries' warnings: their news is not ours."""
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.getLevelNamesMapping()[settings.level.upper()], logging.WARNING))


class _Awaiting(logging.Handler):
    """Writes libraries' lines by a handler that is made with the first line of anybody."""

    def __init__(self, settings: Log) -> None:
        super().__init__()
        self._settings = settings
        self._real: logging.Handler | None = None

    def load(self) -> None:
        self._real = _set_up(self._settings, sys.stderr, anew=False)

    def handle(self, record: logging.LogRecord) -> bool:
        # Without a lock of its own: the real one has one, and whoever sets up may log too.
        logger.set_up()
        return self._real is not None and bool(self._real.handle(record))


def _set_up(settings: Log, target: TextIO, *, anew: bool) -> logging.Handler:
    """Set up structlog, even where it is already if ``anew``; returns the standard library's handler."""
    with _without("rich"):
        import structlog

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
    if anew or not structlog.is_configured():
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
    return handler


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
