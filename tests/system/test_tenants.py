"""Two tenants on one hive: each finds its own, and nothing runs for nobody."""

from collections.abc import Callable
from pathlib import Path

from hive_process import HiveProcess, until


def test_each_tenant_finds_only_its_own(hive: HiveProcess, tmp_path: Path) -> None:
    for tenant, animal in (("acme", "aardvark"), ("globex", "gnu")):
        folder = tmp_path / tenant
        folder.mkdir()
        (folder / "note.md").write_text(f"# Animals\n\nThe {animal} lives here, beside the {tenant} river.\n")
        hive.cli("tenant", "create", tenant)
        hive.cli("connector", "add", "files", "--name", "notes", "--path", str(folder), "--tenant", tenant)
    for tenant in ("acme", "globex"):
        row = until(lambda: hive.json("attempts", "--tenant", tenant), 60, "an attempt")[0]
        hive.cli("attempts", "--wait", str(row["id"]), "--tenant", tenant)

    def found(query: str, tenant: str) -> str:
        return " ".join(
            row["link"] + row["snippet"] for row in hive.json("search", query, "--tenant", tenant)
        )

    assert "aardvark" in found("aardvark", "acme")
    assert "aardvark" not in found("aardvark", "globex")
    assert "gnu" in found("gnu", "globex")
    assert "globex" not in found("animals river", "acme")

    without = hive.run_cli("search", "aardvark")
    assert without.returncode != 0
    assert "tenant" in without.stderr
    unknown = hive.run_cli("search", "aardvark", "--tenant", "initech")
    assert unknown.returncode != 0
    assert "initech" in unknown.stderr


def test_the_same_folder_for_two_tenants(hive: HiveProcess, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "page.md").write_text("# Shared\n\nA pangolin for everyone.\n")
    hive.cli("tenant", "create", "acme")
    for tenant in ("public", "acme"):
        hive.cli("connector", "add", "files", "--name", "same", "--path", str(folder), "--tenant", tenant)
        row = until(lambda: hive.json("attempts", "--tenant", tenant), 60, "an attempt")[0]
        hive.cli("attempts", "--wait", str(row["id"]), "--tenant", tenant)
        assert len(hive.json("search", "pangolin", "--tenant", tenant)) == 1


def test_a_single_tenant_needs_no_name(hive: HiveProcess) -> None:
    assert [row["id"] for row in hive.json("tenant", "list")] == ["public"]
    assert hive.json("search", "anything at all") == []


def test_bad_tenant_names_are_refused(new_hive: Callable[..., HiveProcess]) -> None:
    hive = new_hive()
    hive.start()
    for bad in ("Acme", "a-b", "a;drop schema hive", "x" * 60):
        refused = hive.run_cli("tenant", "create", bad)
        assert refused.returncode != 0
        assert "tenant" in refused.stderr
    assert hive.run_cli("tenant", "create", "public").returncode != 0
