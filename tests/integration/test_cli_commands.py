"""The command line as its users run it: a process of its own against a served API."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hive.broker.port import Settlement
from hive.ids import AttemptId, QueueName, TenantId, new_process_id
from hive.outcomes import ErrorKind, ErrorRecord, Failed
from hive.store.postgres import Database
from http_api import Api, serving

HIVE = Path(sys.executable).parent / "hive"
PUBLIC = TenantId("public")


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Shell:
    """A user's shell whose HIVE_STATE_DIR names one state folder."""

    state: Path
    environment: dict[str, str]

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(HIVE),
            *arguments,
            env={**self.environment, **environment},
            cwd=self.state.parent,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str, **environment: str) -> Ran:
        process = await self.start(*arguments, **environment)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        ran = Ran(process.returncode or 0, out.decode(), err.decode())
        assert "Traceback" not in ran.err, ran.err
        return ran

    async def json(self, *arguments: str) -> Any:
        ran = await self.run(*arguments, "--json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)


@pytest.fixture
def shell(state_dir: Path) -> Shell:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIVE_")}
    return Shell(state_dir, {**kept, "HIVE_STATE_DIR": str(state_dir), "HIVE_HTTP__PORT": "0"})


async def test_connectors_and_attempts(api: Api, shell: Shell, docs: Path) -> None:
    made = await shell.json(
        "connector", "add", "files", "--name", "docs", "--path", "docs", "--include", "*.md"
    )
    assert isinstance(made["id"], int)
    assert made["config"] == {"path": str(docs), "include": ["*.md"]}
    web = await shell.json(
        *("connector", "add", "web", "--name", "site", "--start", "http://127.0.0.1:1/", "--allow-private"),
        *("--max-pages", "5", "--max-depth", "0", "--refresh-seconds", "0"),
    )
    assert web["config"]["max_depth"] == 0
    assert [row["name"] for row in await shell.json("connector", "list")] == ["docs", "site"]
    by_name = await shell.json("connector", "run", "docs")
    by_id = await shell.json("connector", "run", str(made["id"]))
    assert by_name == by_id
    rows = await shell.json("attempts", "--connector", "docs")
    assert {"id", "connector", "status", "documents_new", "documents_total", "batches_done"} <= set(rows[0])
    assert {"batches_total", "error"} <= set(rows[0])
    assert (rows[0]["id"], rows[0]["connector"], rows[0]["status"]) == (
        by_name["attempt"],
        "docs",
        "not_started",
    )
    table = await shell.run("attempts")
    assert "docs" in table.out and "not_started" in table.out
    assert (await shell.run("connector", "pause", "docs")).out == "connector docs is paused\n"
    refused = await shell.run("connector", "run", "docs")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: connector") and "resume it first" in refused.err
    assert (await shell.run("connector", "resume", "docs")).code == 0
    assert (await shell.run("connector", "remove", "docs")).code == 0
    assert [row["name"] for row in await shell.json("connector", "list")] == ["site"]
    absent = await shell.run("connector", "run", "docs")
    assert absent.code == 1 and "no connector is named 'docs'" in absent.err


async def test_an_impossible_folder_is_refused_where_it_was_typed(
    api: Api, shell: Shell, state_dir: Path
) -> None:
    missing = await shell.run("connector", "add", "files", "--name", "a", "--path", "nowhere")
    assert missing.code == 1
    assert "nowhere" in missing.err and "does not exist" in missing.err
    inside = await shell.run("connector", "add", "files", "--name", "a", "--path", str(state_dir))
    assert inside.code == 1 and "state folder" in inside.err


async def _attempt(api: Api, shell: Shell) -> AttemptId:
    await shell.json("connector", "add", "files", "--name", "docs", "--path", "docs")
    return AttemptId((await shell.json("connector", "run", "docs"))["attempt"])


async def _end(api: Api, attempt: AttemptId, status: str, error: str | None = None) -> None:
    async with api.backend.database.transaction(PUBLIC) as connection:
        await connection.execute(
            "update index_attempt set status = $2, error = $3, finished_at = now() where id = $1",
            attempt,
            status,
            error,
        )


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        ("completed", 0, ""),
        ("completed_with_errors", 0, "warning: completed with errors"),
        ("failed", 1, "failed: the disk is on fire"),
        ("cancelled", 1, "cancelled"),
        ("interrupted", 1, "interrupted"),
    ],
)
async def test_waiting_ends_with_the_attempt(
    api: Api, shell: Shell, docs: Path, status: str, code: int, said: str
) -> None:
    attempt = await _attempt(api, shell)
    waiting = await shell.start("attempts", "--wait", str(attempt), "--json")
    assert waiting.stderr is not None
    async with asyncio.timeout(20):
        assert b"not_started" in await waiting.stderr.readline()
    assert waiting.returncode is None
    async with api.backend.database.transaction(PUBLIC) as connection:
        await connection.execute(
            "insert into index_error (attempt, document_id, code, summary) "
            "values ($1, 'a.pdf', 'broken', 'no PDF')",
            attempt,
        )
    await _end(api, attempt, status, "the disk is on fire" if status == "failed" else None)
    async with asyncio.timeout(20):
        out, err = await waiting.communicate()
    assert waiting.returncode == code
    assert json.loads(out)["status"] == status
    assert said in err.decode()
    assert ("a.pdf: no PDF [broken]" in err.decode()) == (status == "completed_with_errors")
    assert "a.pdf" in (await shell.run("attempts", "--errors", str(attempt))).out


async def test_waiting_rides_out_a_restart(
    database: Database, shell: Shell, state_dir: Path, docs: Path
) -> None:
    async with serving(database, state_dir) as api:
        attempt = await _attempt(api, shell)
    waiting = await shell.start("attempts", "--wait", str(attempt))
    assert waiting.stderr is not None
    async with asyncio.timeout(20):
        assert b"waiting for hive" in await waiting.stderr.readline()
    async with serving(database, state_dir) as api, asyncio.timeout(20):  # on another port
        assert b"not_started" in await waiting.stderr.readline()
        await _end(api, attempt, "completed")
        out, _ = await waiting.communicate()
    assert waiting.returncode == 0
    assert out.decode().startswith(f"attempt {attempt} of docs: completed")


async def test_an_attempt_that_does_not_exist_is_not_waited_for(api: Api, shell: Shell) -> None:
    ran = await shell.run("attempts", "--wait", "7")
    assert ran.code == 1 and "no attempt has the id 7" in ran.err


async def test_jobs_and_dead_letters(api: Api, shell: Shell) -> None:
    id = (await shell.run("enqueue", "note", "--json", '{"text": "a [bold] claim"}')).out.strip()
    later = (
        await shell.run("enqueue", "note", "--json", '{"text": "b"}', "--delay-seconds", "60")
    ).out.strip()
    assert {row["id"]: row["state"] for row in await shell.json("jobs")} == {
        id: "pending",
        later: "scheduled",
    }
    assert [row["id"] for row in await shell.json("jobs", "list", "--status", "scheduled")] == [later]
    assert [row["id"] for row in await shell.json("jobs", "--queue", "export")] == []
    shown = await shell.run("jobs", "show", id)
    assert "a [bold] claim" in shown.out
    assert await shell.json("jobs", "cancel", later) == {"cancelled": [later]}
    deliveries = await api.backend.ledger.claim(QueueName("scheduled_tasks"), new_process_id(), 1)
    error = ErrorRecord(kind=ErrorKind.PERMANENT, code="ValueError", summary="no good")
    await api.backend.ledger.settle([Settlement(delivery=deliveries[0], outcome=Failed(error=error))])
    rows = await shell.json("dead")
    assert [(row["id"], row["task"], row["summary"]) for row in rows] == [(id, "note", "no good")]
    assert rows == await shell.json("dead", "list")
    assert "no good" in (await shell.run("dead", "list")).out
    assert (await shell.json("dead", "show", id))["code"] == "ValueError"
    assert await shell.json("dead", "replay", "--all") == {"replayed": 1}
    assert await shell.json("dead", "replay", "--all") == {"replayed": 0}
    assert (await shell.run("dead", "purge", id)).code == 1
    assert (await shell.run("dead", "replay")).code == 2


async def test_bad_messages_are_refused(api: Api, shell: Shell) -> None:
    for arguments in (["absent"], ["note"], ["note", "--json", "{"], ["note", "--json", "[1]"]):
        ran = await shell.run("enqueue", *arguments)
        assert ran.code != 0 and ran.err.startswith("error: ") and ran.err.count("\n") == 1, ran.err


async def test_tenants_search_and_overviews(api: Api, shell: Shell) -> None:
    assert [row["id"] for row in await shell.json("tenant", "list")] == ["public"]
    assert await shell.json("search", "anything at all") == []
    assert (await shell.json("tenant", "create", "acme"))["id"] == "acme"
    missing = await shell.run("search", "anything")
    assert missing.code == 1 and "--tenant" in missing.err
    unknown = await shell.run("search", "anything", "--tenant", "initech")
    assert unknown.code == 1 and "initech" in unknown.err
    odd = await shell.run("search", "anything", "--tenant", "a\nb ü")
    assert odd.code == 1 and "not a tenant id" in odd.err
    assert await shell.json("search", "anything", "--tenant", "acme") == []
    assert {row["queue"] for row in await shell.json("queues")} == set(api.backend.routes)
    assert "document_processing" in (await shell.run("queues")).out
    assert await shell.json("pools") == []
    assert await shell.json("services") == []
    assert (await shell.run("drain")).code == 0
    assert api.drained == [True]


async def test_without_a_hive_it_says_so(shell: Shell, state_dir: Path) -> None:
    commands = (["search", "a"], ["attempts"], ["queues"], ["jobs"], ["dead"], ["tenant", "list"])
    for ran in await asyncio.gather(*(shell.run(*arguments) for arguments in commands)):
        assert ran.code == 1
        assert (
            ran.err == f"error: no hive is running on state folder {state_dir} (start it with `hive run`)\n"
        )


async def test_another_hives_port_is_recognised(api: Api, shell: Shell, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "token").write_text("hive_" + "x" * 43)
    port = api.base.rpartition(":")[2]
    ran = await shell.run("queues", "--state", str(other), "--port", port)
    assert ran.code == 1
    assert "does not accept the token" in ran.err and str(other) in ran.err


async def test_jobs_and_dead_letters_are_seen_while_hive_is_down(
    database: Database, postgres_dsn: str, shell: Shell, state_dir: Path
) -> None:
    async with serving(database, state_dir):
        id = (await shell.run("enqueue", "note", "--json", '{"text": "a"}')).out.strip()
    shell.environment["HIVE_POSTGRES__DSN"] = postgres_dsn
    rows = await shell.json("jobs")
    assert [row["id"] for row in rows] == [id]
    assert await shell.json("jobs", "cancel", id) == {"cancelled": [id]}
    assert await shell.json("dead") == []
    assert not (state_dir / "http.json").exists()
    elsewhere = state_dir.parent / "never-run"
    assert [row["id"] for row in await shell.json("jobs", "--state", str(elsewhere))] == [id]
    assert not elsewhere.exists()


async def test_migrate_and_backup_need_no_hive(postgres_dsn: str, shell: Shell, tmp_path: Path) -> None:
    shell.environment["HIVE_POSTGRES__DSN"] = postgres_dsn
    assert await shell.json("migrate") == {"shared": False, "tenants": [], "failed": {}}
    assert (await shell.run("migrate", "--tenant", "initech")).code == 1
    written = await shell.json("backup", str(tmp_path / "kept"))
    assert written["bytes"] > 0
    assert (await shell.run("backup", str(tmp_path / "kept"))).code == 1


async def test_migrate_without_a_database_says_so(shell: Shell, state_dir: Path) -> None:
    ran = await shell.run("migrate")
    assert ran.code == 3
    assert str(state_dir) in ran.err


async def test_check_lists_every_problem(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "stray.py").write_text(
        "import hive\n@hive.task(queue='nowhere')\nasync def stray(context: hive.Context) -> None: ...\n"
    )
    assert (await shell.run("check")).code == 0
    stray = {"HIVE_PROCESS__MODULES": '["stray"]', "HIVE_SCHEDULES__NONESUCH": "5"}
    shell.environment.update(stray)
    refused = await shell.run("check")
    assert refused.code == 2
    assert "nowhere" in refused.err and "nonesuch" in refused.err
    ran = await shell.run("check", "--json")
    assert ran.code == 2
    assert len(json.loads(ran.out)["problems"]) == 2
    wrong = tmp_path / "bad.toml"
    wrong.write_text("[pools.light]\nslotz = 3\n")
    ran = await shell.run("check", "--config", str(wrong))
    assert ran.code == 2 and "pools.light.slotz" in ran.err


async def test_every_command_has_help_with_an_example(shell: Shell) -> None:
    from supervisor.cli.application import hive

    def walk(path: list[str], command: Any) -> list[list[str]]:
        inner = getattr(command, "commands", {})
        return [path] if not inner else [each for name in inner for each in walk([*path, name], inner[name])]

    for path in walk([], hive):
        command: Any = hive
        for name in path:
            command = command.commands[name]
        assert command.help and "Example" in command.help, path


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "\udcff"),
        ("search", "anything", "--tenant", "\udcff"),
        ("attempts", "--connector", "\udcff"),
        ("jobs", "show", "\udcff"),
        ("dead", "show", "\udcff"),
        ("connector", "run", "\udcff"),
        ("tenant", "create", "\udcff"),
        ("enqueue", "\udcff", "--json", "{}"),
    ],
    ids=" ".join,
)
async def test_bytes_that_are_no_text_are_refused_in_one_line(
    api: Api, shell: Shell, arguments: tuple[str, ...]
) -> None:
    ran = await shell.run(*arguments)
    assert ran.code in (1, 2)
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("length", [2_000, 7_990, 20_000, 100_000])
async def test_a_question_too_long_is_said_to_be(api: Api, shell: Shell, length: int) -> None:
    ran = await shell.run("search", "x" * length)
    assert ran.code in (0, 1)
    assert "not hive" not in ran.err
    assert "Traceback" not in ran.err


async def test_the_probe_is_quick_and_imports_nothing_of_hive(shell: Shell) -> None:
    ran = await shell.run("probe", "ready", PYTHONPROFILEIMPORTTIME="1")
    assert ran.code == 1
    imported = {
        line.rpartition("|")[2].strip() for line in ran.err.splitlines() if line.startswith("import time:")
    }
    assert "probes.command" in imported
    assert not imported & {"hive", "click", "rich", "asyncio", "aiohttp", "json"}


async def test_a_search_imports_no_server(api: Api, shell: Shell) -> None:
    ran = await shell.run("search", "anything", PYTHONPROFILEIMPORTTIME="1")
    imported = {
        line.rpartition("|")[2].strip() for line in ran.err.splitlines() if line.startswith("import time:")
    }
    assert "click" in imported
    assert not imported & {
        "hive",
        "hive.settings",
        "pydantic",
        "aiohttp",
        "asyncpg",
        "rich",
        "structlog",
        "asyncio",
    }
