"""Loggers that load structlog when they are first used."""

import subprocess
import sys
import threading

from structlog.testing import capture_logs

from hive.logger import before_first_line, get_logger


def test_a_line_reaches_structlog_as_it_is_configured_by_then() -> None:
    log = get_logger("hive.somewhere")
    log.debug("before")
    with capture_logs() as lines:
        log.warning("store.away", store="redis")
        log.log(20, "job.done")
    assert lines == [
        {"event": "store.away", "store": "redis", "log_level": "warning"},
        {"event": "job.done", "log_level": "info"},
    ]


def test_no_thread_logs_before_the_first_one_has_set_up() -> None:
    begun, end = threading.Event(), threading.Event()
    order: list[str] = []

    def set_up() -> None:
        begun.set()
        end.wait(60)
        order.append("set up")

    def log(name: str) -> None:
        get_logger(name).debug("line")
        order.append("logged")

    before_first_line(set_up)
    first = threading.Thread(target=log, args=("first",))
    second = threading.Thread(target=log, args=("second",))
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(0.1)  # as long as it may take to go wrong
    end.set()
    first.join()
    second.join()
    assert order == ["set up", "logged", "logged"]


def test_clients_and_workers_load_no_structlog_until_they_log() -> None:
    program = (
        "import sys, hive, pools.pool, supervisor.sweeper\n"
        "import hive.broker.ledger, hive.broker.streams, hive.store.postgres, hive.store.redis\n"
        "print('structlog' in sys.modules, 'rich' in sys.modules)\n"
        "hive.broker.ledger.log.info('hello')\n"
        "print('structlog' in sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False", *said.splitlines()[1].split(), "True"]
    assert "hello" in said
