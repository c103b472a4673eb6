"""The files connector: what it finds, what it leaves alone, where it goes on."""

import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import document_samples as samples
from hive.ingest.connectors.files import FilesConnector
from hive.ingest.connectors.files_config import FilesConfig
from hive.ingest.connectors.port import (
    Checkpoint,
    DocumentFailure,
    Item,
    Json,
    SourceDocument,
    SourceError,
    Unchanged,
)


class Source:
    """A folder under test, with what the database would know of it."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root = root
        self.config: dict[str, Any] = {"path": str(root), "roots": [str(root)], **config}
        self.known: dict[str, Mapping[str, Json]] = {}
        self.asked: list[int] = []

    async def ask(self, source_ids: Sequence[str]) -> Mapping[str, Mapping[str, Json]]:
        self.asked.append(len(source_ids))
        return {source_id: self.known[source_id] for source_id in source_ids if source_id in self.known}

    async def run(self, checkpoint: Json = None, *, limit: int | None = None, **config: Any) -> list[Item]:
        items: list[Item] = []
        validated = FilesConfig.model_validate({**self.config, **config})
        async for item in FilesConnector().items(validated, None, checkpoint, self.ask):
            items.append(item)
            if isinstance(item, SourceDocument):
                self.known[item.source_id] = item.source_state
            if limit is not None and len(items) >= limit:
                break
        return items

    def name(self, source_id: str) -> str:
        return source_id.removeprefix(f"file://{self.root}/")

    def names(self, items: Sequence[Item]) -> list[str]:
        return [self.name(item.source_id) for item in items if isinstance(item, SourceDocument)]

    def failures(self, items: Sequence[Item]) -> dict[str, str]:
        return {self.name(item.source_id): item.code for item in items if isinstance(item, DocumentFailure)}


def unchanged(items: Sequence[Item]) -> int:
    return sum(item.count for item in items if isinstance(item, Unchanged))


def write(root: Path, *names: str, text: str = "some text") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    root = tmp_path / "root"
    root.mkdir()
    return Source(root)


async def test_documents_come_in_the_order_of_their_paths(source: Source) -> None:
    write(source.root, "b.md", "a/z.txt", "a.html", "a/b/c.rst", "a-b.md", "Z.TXT")
    items = await source.run()
    assert source.names(items) == ["Z.TXT", "a/b/c.rst", "a/z.txt", "a-b.md", "a.html", "b.md"]
    assert isinstance(items[-1], Checkpoint)
    first = items[0]
    assert isinstance(first, SourceDocument)
    assert first.link == first.source_id == f"file://{source.root}/Z.TXT"
    assert first.metadata == {"format": "text"}


async def test_hidden_folders_dependencies_and_unknown_endings_are_left_alone(source: Source) -> None:
    write(
        source.root,
        "a.md",
        ".git/x.md",
        "node_modules/y.md",
        "_sources/z.rst.txt",
        ".hidden.md",
        "a.py",
        "a.json",
    )
    assert source.names(await source.run()) == ["a.md"]
    write(source.root, ".venv/lib/x.md", "sub/.git/a.md")
    assert source.names(await source.run()) == []
    assert source.names(await source.run(include=["*.py"])) == ["a.py"]
    assert source.names(await source.run(include=["_sources/**"])) == ["_sources/z.rst.txt"]
    assert source.names(await source.run(include=[".git/*"])) == [".git/x.md"]


async def test_include_and_exclude(source: Source) -> None:
    write(source.root, "a.md", "b.txt", "old/c.md", "old/deep/d.md", "new/old/e.md")
    assert source.names(await source.run(include=["**/*.md"])) == [
        "a.md",
        "new/old/e.md",
        "old/c.md",
        "old/deep/d.md",
    ]
    source.known.clear()
    assert source.names(await source.run(exclude=["old/**"])) == ["a.md", "b.txt", "new/old/e.md"]
    source.known.clear()
    assert source.names(await source.run(exclude=["old"])) == ["a.md", "b.txt"]
    source.known.clear()
    assert source.names(await source.run(include=["old/*.md"])) == ["old/c.md"]


async def test_second_run_reads_only_what_changed(source: Source) -> None:
    write(source.root, "a.md", "b.md", "c.md")
    assert len(source.names(await source.run())) == 3
    again = await source.run()
    assert (source.names(again), unchanged(again)) == ([], 3)
    write(source.root, "b.md", text="other text")
    again = await source.run()
    assert (source.names(again), unchanged(again)) == (["b.md"], 2)


async def test_an_edit_that_hides_its_time_and_size_is_seen(source: Source) -> None:
    write(source.root, "a.md", text="one")
    await source.run()
    path = source.root / "a.md"
    before = path.stat()
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.names(await source.run()) == ["a.md"]


async def test_revision_rises_for_a_restored_older_file_and_for_a_clock_set_back(source: Source) -> None:
    write(source.root, "a.md", text="new")
    first = (await source.run())[0]
    assert isinstance(first, SourceDocument)
    write(source.root, "older", text="old text")
    os.utime(source.root / "older", (1_000_000, 1_000_000))
    os.replace(source.root / "older", source.root / "a.md")
    restored = (await source.run())[0]
    assert isinstance(restored, SourceDocument)
    assert first.revision is not None
    assert restored.revision is not None
    assert restored.revision > first.revision
    ahead = restored.revision + 10**18  # as if it had been stored by a host whose clock is thirty years ahead
    source.known[restored.source_id] = {**restored.source_state, "revision": ahead, "size": -1}
    later = (await source.run())[0]
    assert isinstance(later, SourceDocument)
    assert later.revision == ahead + 1


async def test_a_new_parser_reads_everything_again(source: Source) -> None:
    write(source.root, "a.md")
    await source.run()
    for source_id, state in source.known.items():
        source.known[source_id] = {**state, "parsing": -1}
    assert source.names(await source.run()) == ["a.md"]


async def test_asks_in_portions_and_checkpoints_every_sixteen(source: Source) -> None:
    write(source.root, *(f"{number:03}.md" for number in range(450)))
    items = await source.run()
    assert source.asked == [200, 200, 50]
    since = 0
    for item in items:
        since = 0 if isinstance(item, Checkpoint) else since + 1
        assert since <= 16
    assert since == 0


async def test_goes_on_behind_any_checkpoint(source: Source) -> None:
    names = [f"{folder}/{number:02}.md" for folder in ("a", "a/b", "a0", "c") for number in range(20)]
    write(source.root, *names)
    everything = source.names(await source.run())
    assert sorted(everything) == sorted(names)
    source.known.clear()
    items = await source.run()
    for index, item in enumerate(items):
        if isinstance(item, Checkpoint):
            source.known.clear()
            rest = source.names(await source.run(item.state))
            assert source.names(items[:index]) + rest == everything


async def test_a_checkpoint_of_other_settings_is_not_used(source: Source) -> None:
    write(source.root, "a.md", "b.txt")
    last = (await source.run())[-1]
    assert isinstance(last, Checkpoint)
    source.known.clear()
    assert source.names(await source.run(last.state)) == []
    assert source.names(await source.run(last.state, include=["*.md", "*.txt"])) == ["a.md", "b.txt"]


names = st.lists(
    st.lists(
        st.sampled_from([b"a", b"b", b"a b", b"\xff\xfe", "ü".encode(), b"c.md"]), min_size=1, max_size=3
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names)
async def test_any_names_survive_json_and_resuming(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[bytes]]
) -> None:
    root = tmp_path_factory.mktemp("root")
    for parts in paths:
        folder = os.path.join(os.fsencode(root), *(part + b"_" for part in parts))
        os.makedirs(folder, exist_ok=True)
        Path(os.fsdecode(os.path.join(folder, b"\xfftext.md"))).write_text("text")
    source = Source(root)
    items = await source.run()
    assert len(set(source.names(items))) == len({tuple(parts) for parts in paths})
    for item in items:
        if isinstance(item, SourceDocument):
            item.source_id.encode("ascii")
            item.title.encode("utf-8")
    last = items[-1]
    assert isinstance(last, Checkpoint)
    str(last.state).encode("ascii")
    assert source.names(await source.run(last.state)) == []


async def test_bad_documents_are_failures_of_their_own(source: Source) -> None:
    root = source.root
    write(root, "good.md", "empty.md")
    (root / "empty.md").write_text("")
    (root / "binary.txt").write_bytes(bytes(range(256)) * 64)
    (root / "nul.txt").write_bytes(b"text with a \x00 byte\n")
    (root / "broken.pdf").write_bytes(b"%PDF-1.7 not really")
    (root / "locked.pdf").write_bytes(samples.encrypted_pdf("secret"))
    with (root / "huge.txt").open("wb") as huge:
        huge.truncate(200 * 1024 * 1024)
    os.symlink("loop.md", root / "loop.md")
    os.symlink("nowhere.md", root / "dangling.md")
    items = await source.run()
    assert source.names(items) == ["good.md", "nul.txt"]
    assert source.failures(items) == {
        "empty.md": "empty",
        "binary.txt": "binary",
        "broken.pdf": "unparsable",
        "locked.pdf": "encrypted",
        "huge.txt": "too_large",
        "loop.md": "unreadable",
        "dangling.md": "not_found",
    }


async def test_what_is_no_file_is_never_opened(source: Source) -> None:
    write(source.root, "a.md")
    os.mkfifo(source.root / "pipe.md")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source.root / "socket.md"))
        items = await source.run()
    assert source.names(items) == ["a.md"]
    assert source.failures(items) == {}


async def test_symbolic_links_never_lead_out(source: Source, tmp_path: Path) -> None:
    write(tmp_path, "outside/secret.md", "outside.md")
    write(source.root, "in/a.md", "state/token.md")
    os.symlink(tmp_path / "outside.md", source.root / "out.md")
    os.symlink(tmp_path / "outside", source.root / "out")
    os.symlink("..", source.root / "in" / "up")
    os.symlink("in/a.md", source.root / "alias.md")
    os.symlink("state/token.md", source.root / "token.md")
    items = await source.run(refused=[str(source.root / "state")])
    assert source.names(items) == ["alias.md", "in/a.md"]
    assert source.failures(items) == {}


async def test_a_folder_exchanged_for_a_link_during_the_walk_gives_nothing_away(
    source: Source, tmp_path: Path
) -> None:
    write(tmp_path, "outside/b.md", text="secret")
    write(source.root, "a.md", "sub/b.md")

    async def exchange(source_ids: Sequence[str]) -> Mapping[str, Mapping[str, Json]]:
        os.rename(source.root / "sub", tmp_path / "moved")
        os.symlink(tmp_path / "outside", source.root / "sub")
        return {}

    config = FilesConfig.model_validate(source.config)
    items = [item async for item in FilesConnector().items(config, None, None, exchange)]
    assert source.names(items) == ["a.md"]


async def test_a_file_that_vanishes_is_a_failure(source: Source) -> None:
    write(source.root, "a.md", "b.md", "c.md")

    async def remove(source_ids: Sequence[str]) -> Mapping[str, Mapping[str, Json]]:
        (source.root / "b.md").unlink()
        return {}

    config = FilesConfig.model_validate(source.config)
    items = [item async for item in FilesConnector().items(config, None, None, remove)]
    assert source.names(items) == ["a.md", "c.md"]
    assert source.failures(items) == {"b.md": "not_found"}


async def test_unreadable_places_are_failures() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Source(Path(folder))
        write(source.root, "a.md", "b.md", "closed/c.md", "z.md")
        source.root.chmod(0o755)
        (source.root / "b.md").chmod(0)
        (source.root / "closed").chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # root may read everything
        try:
            items = await source.run()
        finally:
            os.seteuid(user)
            (source.root / "closed").chmod(0o700)
    assert source.names(items) == ["a.md", "z.md"]
    assert source.failures(items) == {"b.md": "forbidden", "closed": "forbidden"}


async def test_single_file(source: Source) -> None:
    write(source.root, "only.log", "other.md")
    items = await source.run(path=str(source.root / "only.log"))
    assert source.names(items) == ["only.log"]
    again = await source.run(path=str(source.root / "only.log"))
    assert unchanged(again) == 1


async def test_sources_that_cannot_be_read_say_why(source: Source, tmp_path: Path) -> None:
    write(tmp_path, "beside/a.md", "root-beside/a.md", "root/state/x.md", "root/a.md")
    os.symlink(tmp_path / "beside", source.root / "link")
    cases = {
        str(source.root / "nowhere"): "not_found",
        str(source.root / "a.md" / "x"): "not_found",
        str(tmp_path / "beside"): "outside_roots",
        str(tmp_path / "beside-nowhere"): "outside_roots",
        str(tmp_path / "root-beside"): "outside_roots",
        str(source.root / "link"): "outside_roots",
        str(source.root / "state"): "refused",
        str(source.root / "state" / "x.md"): "refused",
    }
    for path, code in cases.items():
        with pytest.raises(SourceError) as caught:
            await source.run(path=path, refused=[str(source.root / "state")])
        assert caught.value.code == code, path
        assert path in str(caught.value)
        assert not caught.value.transient


async def test_without_roots_nothing_is_read(source: Source) -> None:
    with pytest.raises(SourceError, match=r"connectors\.files\.roots"):
        await source.run(roots=[])
