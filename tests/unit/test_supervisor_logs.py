"""Logs: machine-readable where nobody watches, and never a secret."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from hive import logger
from hive.settings import Log
from supervisor import logs


@pytest.fixture
def stream():
    target = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure(Log(level="info", format="json"), stream=target)
    yield target
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_and_below_the_level_there_is_none(stream: io.StringIO) -> None:
    log = structlog.get_logger("test")
    log.debug("hidden")
    log.info("pool.drained", pool="light", count=3)
    (line,) = lines(stream)
    assert line["event"] == "pool.drained"
    assert line["pool"] == "light"
    assert line["level"] == "info"
    assert "timestamp" in line


@pytest.mark.parametrize(
    "fields",
    [
        {"cause": "could not connect to postgresql://hive:hunter2@db:5432/hive?sslmode=require"},
        {"cause": "redis://:hunter2@cache:6379/0 refused"},
        {"cause": "host=db password=hunter2 user=hive"},
        {"cause": "GET https://x/?api_key=hunter2&q=1"},
        {"header": "Bearer hunter2hunter2"},
        {"password": "hunter2"},
        {"postgres_dsn": "hunter2"},
        {"API_KEY": "hunter2"},
        {"settings": {"redis": {"token": "hunter2"}, "list": [{"secret": "hunter2"}]}},
        {"error": ValueError("postgresql://u:hunter2@h/db")},
    ],
)
def test_secrets_never_reach_the_log(stream: io.StringIO, fields: dict) -> None:
    structlog.get_logger("test").info("something", **fields)
    assert "hunter2" not in stream.getvalue()
    assert "[redacted]" in stream.getvalue()


def test_what_is_no_secret_stays(stream: io.StringIO) -> None:
    structlog.get_logger("test").info(
        "job.started", key="check_for_indexing", tokens=12, link="https://docs.example:8080/a?b=c", done=None
    )
    (line,) = lines(stream)
    assert line["key"] == "check_for_indexing"
    assert line["tokens"] == 12
    assert line["link"] == "https://docs.example:8080/a?b=c"


def test_tracebacks_are_cleaned_too(stream: io.StringIO) -> None:
    try:
        raise ConnectionError("postgresql://hive:hunter2@db/hive")
    except ConnectionError:
        structlog.get_logger("test").exception("store.down")
    (line,) = lines(stream)
    assert "ConnectionError" in line["exception"]
    assert "hunter2" not in stream.getvalue()


def test_libraries_warn_in_the_same_form_and_their_news_is_left_out(stream: io.StringIO) -> None:
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("token=hunter2 at %s", "host")
    (line,) = lines(stream)
    assert line["logger"] == "some.library"
    assert line["level"] == "warning"
    assert "hunter2" not in line["event"]


@pytest.fixture
def prepared() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.reset_defaults()
    logs.prepare(Log(level="info", format="json"))
    yield root
    logger.before_first_line(lambda: None)
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def test_what_a_task_module_sets_up_before_the_first_line_stands(
    prepared: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    target = io.StringIO()
    prepared.addHandler(logging.StreamHandler(target))
    prepared.setLevel(logging.INFO)
    logger.get_logger("hive.somewhere").info("hive.ready")
    logging.getLogger("theirs").info("token=hunter2")
    assert target.getvalue() == "token=hunter2\n"
    first, second = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert first["event"] == "hive.ready"
    assert second["logger"] == "theirs"
    assert "hunter2" not in second["event"]


def test_a_form_of_the_logs_that_a_task_module_chose_stands(prepared: logging.Logger) -> None:
    theirs: list[Any] = []

    def keep(_: Any, __: str, event: Any) -> Any:
        theirs.append(event["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    logger.get_logger("hive.somewhere").info("hive.ready")
    assert theirs == ["hive.ready"]


def test_the_first_line_of_a_library_is_written_once(
    prepared: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    target = io.StringIO()
    prepared.addHandler(logging.StreamHandler(target))
    logging.getLogger("library").warning("once")
    assert target.getvalue() == "once\n"
    assert capsys.readouterr().err.count("once") == 1
