"""Which hive the command line means."""

import json
from pathlib import Path

import pytest

from supervisor.cli.failure import CommandFailed, NotRunning
from supervisor.cli.place import Address, find


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HIVE_STATE_DIR",
        "HIVE_CONFIG",
        "HIVE_PROCESS__STATE_DIR",
        "HIVE_HTTP__PORT",
        "HIVE_HTTP__HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def place(state: str | None = None, config: str | None = None, port: int | None = None):
    return find(state=state, config=config, port=port, tenant=None)


def test_the_state_folder_follows_the_order_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place().state_dir == tmp_path / ".hive"
    (tmp_path / "config.toml").write_text('[process]\nstate_dir = "from-file"\n')
    assert place().state_dir == tmp_path / "from-file"
    monkeypatch.setenv("HIVE_STATE_DIR", "short")
    assert place().state_dir == tmp_path / "short"
    monkeypatch.setenv("HIVE_PROCESS__STATE_DIR", "/var/long")
    assert place().state_dir == Path("/var/long")
    assert place(state="given").state_dir == tmp_path / "given"


def test_it_agrees_with_hives_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hive.config_file import load

    (tmp_path / "config.toml").write_text('[process]\nstate_dir = "from-file"\n[http]\nport = 1234\n')
    for name, value in (("HIVE_STATE_DIR", "/short"), ("HIVE_PROCESS__STATE_DIR", "/long")):
        found = place()
        settings = load(found.config, overrides=found.overrides())
        assert settings.process.state_dir.absolute() == found.state_dir
        assert settings.http.port == found.address().port
        monkeypatch.setenv(name, value)
    given = place(state="given", port=99)
    assert load(given.config, overrides=given.overrides()).process.state_dir == tmp_path / "given"
    assert load(given.config, overrides=given.overrides()).http.port == 99


def test_the_address_is_what_hive_wrote_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / ".hive"
    state.mkdir()
    assert place().address() == Address(host="127.0.0.1", port=8420)
    monkeypatch.setenv("HIVE_HTTP__PORT", "7000")
    assert place().address() == Address(host="127.0.0.1", port=7000)
    (state / "http.json").write_text(json.dumps({"host": "0.0.0.0", "port": 5000, "pid": 1}))
    assert place().address() == Address(host="127.0.0.1", port=5000)
    assert place(port=6000).address() == Address(host="127.0.0.1", port=6000)
    (state / "http.json").write_text("{")  # half a file is no file
    assert place().address().port == 7000
    monkeypatch.setenv("HIVE_HTTP__PORT", "0")
    with pytest.raises(NotRunning):
        place().address()


def test_where_no_hive_ever_ran_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotRunning) as said:
        place().token()
    assert said.value.line() == (
        f"error: no hive is running on state folder {tmp_path / '.hive'} (start it with `hive run`)"
    )
    assert said.value.code == 1


def test_a_configuration_file_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandFailed) as said:
        place(config="nowhere.toml")
    assert said.value.code == 2
    assert "nowhere.toml" in said.value.message
