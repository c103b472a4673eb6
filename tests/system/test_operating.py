"""Start, probes, metrics, custom tasks, backup: an operator's day, with the real process."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from hive_process import HiveProcess, until

ROOT = Path(__file__).parents[2]


def test_the_demo_answers(new_hive: Callable[..., HiveProcess]) -> None:
    hive = new_hive()
    hive.cwd = ROOT
    hive.start("--demo")
    until(lambda: "hive is ready on" in hive.log_text(), 60, "the word that it is ready")
    (row,) = hive.json("attempts")  # begun already: a check may be a quarter of a minute away
    hive.cli("attempts", "--wait", str(row["id"]))
    first = hive.json("search", "graceful shutdown")[0]
    assert "shutdown" in (first["title"] + first["link"]).lower()
    assert hive.stop() == 0
    hive.start("--demo")  # a second start adds nothing twice
    assert len(hive.json("connector", "list")) == 1


def test_probes_and_public_pages(hive: HiveProcess) -> None:
    assert hive.status_of("/livez") == 200
    assert "hive_" in hive.text_of("/metrics")
    hive.cli("probe", "live")
    hive.cli("probe", "ready")
    with (
        pytest.raises(urllib.error.HTTPError) as refused,
        urllib.request.urlopen(hive.base_url + "/v1/connectors", timeout=20),
    ):
        pass
    with refused.value as answer:
        assert answer.code == 401
    token = hive.state / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert hive.stop() == 0
    assert hive.run_cli("probe", "live").returncode == 1
    assert hive.run_cli("probe", "ready").returncode == 1


def test_the_heartbeat_goes_round(new_hive: Callable[..., HiveProcess]) -> None:
    hive = new_hive(environment={"HIVE_BEAT__PERIOD_FACTOR": "0.05"})
    hive.start()

    def heartbeats() -> float:
        lines = [line for line in hive.text_of("/metrics").splitlines() if 'task="heartbeat"' in line]
        return sum(float(line.split()[-1]) for line in lines if 'outcome="completed"' in line)

    first = until(heartbeats, 60, "a heartbeat")
    until(lambda: heartbeats() > first, 60, "another heartbeat")


def test_a_task_of_ones_own(new_hive: Callable[..., HiveProcess], tmp_path: Path) -> None:
    module = tmp_path / "mytasks.py"
    module.write_text(
        "import pathlib\n"
        "import hive\n"
        "@hive.task(queue='scheduled_tasks')\n"
        "async def note(context: hive.Context, text: str) -> None:\n"
        f"    pathlib.Path({str(tmp_path)!r}, text).touch()\n"
        "@hive.task(queue='scheduled_tasks')\n"
        "async def broken(context: hive.Context) -> None:\n"
        "    raise ValueError('no good')\n"
        "@hive.task(queue='scheduled_tasks', process=True)\n"
        "def apart(context: object, text: str) -> None:\n"
        f"    pathlib.Path({str(tmp_path)!r}, text).touch()\n"
    )
    tmp_path.chmod(0o777)  # a child may run as another user
    hive = new_hive(environment={"HIVE_PROCESS__MODULES": '["mytasks"]', "PYTHONPATH": str(tmp_path)})
    hive.start()
    hive.cli("enqueue", "note", "--json", '{"text": "written"}')
    until((tmp_path / "written").exists, 30, "the task's effect")
    hive.cli("enqueue", "apart", "--json", '{"text": "by a child"}')
    until((tmp_path / "by a child").exists, 30, "the child's effect")
    hive.cli("enqueue", "broken", "--json", "{}")
    dead = until(lambda: hive.json("dead", "list"), 30, "a dead letter")
    assert dead[0]["task"] == "broken"
    assert "no good" in json.dumps(dead[0])
    hive.cli("dead", "show", str(dead[0]["id"]))
    hive.cli("dead", "replay", str(dead[0]["id"]))
    until(lambda: hive.json("dead", "list"), 30, "the dead letter again")
    for arguments in (["absent", "--json", "{}"], ["note", "--json", "{}"], ["note", "--json", "{"]):
        refused = hive.run_cli("enqueue", *arguments)
        assert refused.returncode != 0
        assert "Traceback" not in refused.stderr


def test_check_names_every_problem(new_hive: Callable[..., HiveProcess], tmp_path: Path) -> None:
    (tmp_path / "stray.py").write_text(
        "import hive\n@hive.task(queue='nowhere')\nasync def stray(context: hive.Context) -> None: ...\n"
    )
    hive = new_hive(environment={"PYTHONPATH": str(tmp_path)})
    assert hive.run_cli("check").returncode == 0
    hive.environment |= {"HIVE_PROCESS__MODULES": '["stray"]', "HIVE_SCHEDULES__NONESUCH": "5"}
    refused = hive.run_cli("check")
    assert refused.returncode == 2
    assert "nowhere" in refused.stderr and "nonesuch" in refused.stderr
    assert hive.run_cli("run").returncode == 2


def test_backup_holds_what_a_restore_needs(hive: HiveProcess, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    hive.cli("backup", str(target))
    names = {path.name for path in target.rglob("*")} if target.is_dir() else {target.name}
    assert any("dump" in name or name.endswith(".sql") for name in names), names
    assert any("key" in name for name in names), names


def test_waiting_rides_out_a_restart(new_hive: Callable[..., HiveProcess], tmp_path: Path) -> None:
    import subprocess

    from hive_process import HIVE

    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(400):
        (folder / f"{number:03}.md").write_text(f"# Page {number}\n\n" + f"word{number} " * 300)
    hive = new_hive()
    hive.start()
    hive.cli("connector", "add", "files", "--name", "many", "--path", str(folder))
    row = until(lambda: hive.attempt("many"), 30, "the attempt")
    waiting = subprocess.Popen(
        [str(HIVE), "attempts", "--wait", str(row["id"])], env=hive.environment, cwd=hive.cwd,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    hive.kill()
    hive.start()
    output, _ = waiting.communicate(timeout=180)
    assert waiting.returncode == 0, output.decode()
    row = hive.attempt("many")
    assert row is not None and row["documents_new"] == 400
