"""Settings: merged key by key, unknown and impossible ones refused by name, config.toml equal to the code."""

from pathlib import Path

import pytest

from hive.config_file import load, main, render
from hive.errors import ConfigurationError
from hive.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_hive_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("HIVE_"):
            monkeypatch.delenv(name)


def test_config_toml_equals_the_code() -> None:
    assert (ROOT / "config.toml").read_text("utf-8") == render()


def test_rendered_defaults_load_as_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(render(), "utf-8")
    assert load(file).model_dump() == Settings().model_dump() == load(None).model_dump()


def test_environment_changes_one_key_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_POOLS__LIGHT__SLOTS", "48")
    settings = load(None)
    assert settings.pools["light"].slots == 48
    assert settings.pools["light"].stream == Settings().pools["light"].stream
    assert settings.pools["heavy"] == Settings().pools["heavy"]


def test_environment_wins_over_the_file_and_the_command_line_over_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[http]\nport = 1000\nhost = '127.0.0.2'\n", "utf-8")
    monkeypatch.setenv("HIVE_HTTP__PORT", "2000")
    assert (load(file).http.host, load(file).http.port) == ("127.0.0.2", 2000)
    assert load(file, overrides={"http": {"port": 3000}}).http.port == 3000


def test_state_dir_shorthand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_STATE_DIR", "/elsewhere")
    assert load(None).process.state_dir == Path("/elsewhere")


def test_a_pool_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[pools.mine]\nslots = 2\nledger = ['mine']\n", "utf-8")
    settings = load(file)
    assert settings.pools["mine"].ledger == ("mine",)
    assert "light" in settings.pools


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[http]\nprot = 1\n", "http.prot"),
        ("[htp]\nport = 1\n", "htp"),
        ("[http]\nport = 'many'\n", "http.port"),
        ("[http]\nport = 70000\n", "http.port"),
        ("[pools.light]\nslots = -1\n", "pools.light.slots"),
        ("[pools.light]\nslot = 1\n", "pools.light.slot"),
        ("[pools.other]\nslots = 1\nledger = ['scheduled_tasks']\n", "scheduled_tasks"),
        ("[leases]\nrenew_seconds = 59\n", "renew_seconds"),
        ("[leases]\nleader_seconds = 20\n", "leader_seconds"),
        ("[documents]\nchunk_overlap_characters = 1000\n", "chunk_overlap_characters"),
        ("[schedules]\nheartbeat = -1\n", "schedules.heartbeat"),
        ("[leases]\ndelivery_seconds = inf\n", "leases.delivery_seconds"),
        ("[shutdown]\ngrace_seconds = nan\n", "shutdown.grace_seconds"),
        ("[http\n", "config.toml"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError, match=named.replace(".", r"\.")):
        load(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HIVE_HTTP__PROT", "1"),
        ("HIVE_PORT", "1"),
        ("HIVE_HTTPS__PORT", "1"),
        ("HIVE_REDIS__ENABLED", "perhaps"),
    ],
)
def test_bad_environment_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError):
        load(None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HIVE_POSTGRES__DSN", "sesame"),
        ("HIVE_POSTGRES__DSN", "mysql://u:sesame@h/d"),
        ("HIVE_POSTGRES__DIRECT_DSN", "host=h password=sesame"),
        ("HIVE_REDIS__URL", "http://:sesame@h"),
        ("HIVE_EMBEDDING__URL", "sesame:8000/v1"),
    ],
)
def test_an_address_of_no_known_kind_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="must begin with") as refused:
        load(None)
    assert name.removeprefix("HIVE_").replace("__", ".").lower() in str(refused.value)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("name", ["HIVE_PROCESS__MODULES", "HIVE_CONNECTORS__FILES__ROOTS"])
def test_a_list_that_is_no_json_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "mytasks")
    with pytest.raises(ConfigurationError, match=name) as refused:
        load(None)
    assert refused.value.remedy is not None
    assert '["one", "two"]' in refused.value.remedy


@pytest.mark.parametrize(("text", "named"), [("http = 5", "http"), ("[pools]\nlight = 3", r"pools\.light")])
def test_what_is_no_table_is_refused_though_the_environment_says_more_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, named: str
) -> None:
    monkeypatch.setenv("HIVE_HTTP__PORT", "9000")
    monkeypatch.setenv("HIVE_POOLS__LIGHT__SLOTS", "4")
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=rf"{named}: must be a table"):
        load(file)


def test_a_missing_file_is_not_silently_empty(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        load(tmp_path / "absent.toml")


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_POSTGRES__DSN", "postgresql://u:hunter2@h/d")
    assert "hunter2" not in repr(load(None))


def test_drift_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    assert main(["--write", str(file)]) == 0
    assert main(["--check", str(file)]) == 0
    file.write_text(file.read_text() + "# more\n")
    assert main(["--check", str(file)]) == 1
    assert "make config" in capsys.readouterr().err


def test_a_provider_of_ones_own_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_PROVIDERS__OPENAI", "32")
    assert load(None).providers == {**Settings().providers, "openai": 32}
    monkeypatch.setenv("HIVE_PROVIDERS__OPENAI", "0")
    with pytest.raises(ConfigurationError, match=r"providers\.openai"):
        load(None)


def test_a_limit_names_a_queue_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_LIMITS__DOCUMENT_PROCESSING", "500")
    assert load(None).limits == {"document_processing": 500}
    monkeypatch.setenv("HIVE_LIMITS__NO_SUCH", "500")
    with pytest.raises(ConfigurationError, match="no_such"):
        load(None)


def test_the_promised_times_follow_from_the_defaults() -> None:
    """Leases are renewed at a third of their length; what the dead held is taken over 5 s after its end."""
    leases = Settings().leases
    assert leases.delivery_seconds == 60
    assert leases.renew_seconds <= leases.delivery_seconds / 3
    assert leases.sweep_seconds * 1.2 <= 5  # with its jitter
