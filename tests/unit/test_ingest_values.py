"""The small values of ingestion: versions, cleaning, packing, fusing, snippets, reasons to wait."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.errors import HiveError
from hive.ids import BatchId
from hive.ingest.batches import BatchUnreadable, pack, unpack
from hive.ingest.cleaning import clean, clean_json
from hive.ingest.documents import last_of_each
from hive.ingest.fetching import Chunk, ParsedDocument
from hive.ingest.index.port import Found
from hive.ingest.index.search import fuse
from hive.ingest.index.snippet import LONGEST, snippet
from hive.ingest.versions import may_replace, version_of
from hive.ingest.waiting import CATCHING_UP, waiting_for


def document(source_id: str, body: str = "text") -> ParsedDocument:
    return ParsedDocument(
        source_id=source_id,
        title="title",
        link="link",
        revision=None,
        content_hash="00",
        source_state={"a": 1},
        metadata={"b": "c"},
        chunks=[Chunk(ordinal=0, heading="h", anchor="a", body=body)],
    )


def test_versions_compare_from_left_to_right() -> None:
    assert may_replace(version_of(None, BatchId(5)), version_of(None, BatchId(5)))
    assert may_replace(version_of(None, BatchId(6)), version_of(None, BatchId(5)))
    assert not may_replace(version_of(None, BatchId(4)), version_of(None, BatchId(5)))
    assert may_replace(version_of(2, BatchId(4)), version_of(1, BatchId(5)))
    assert version_of(2**80, BatchId(1)) == [2**63 - 1, 1]
    assert version_of(-5, BatchId(1)) == [0, 1]


@given(st.text())
def test_clean_text_can_be_stored(text: str) -> None:
    cleaned = clean(text)
    assert "\x00" not in cleaned
    cleaned.encode()
    if "\x00" not in text and all(not 0xD800 <= ord(character) <= 0xDFFF for character in text):
        assert cleaned == text


def test_json_is_cleaned_all_the_way_down() -> None:
    assert clean_json({"a\x00": ["b\x00", {"c": "d\ud800"}], "n": 1, "x": None}) == {
        "a": ["b", {"c": "d?"}],
        "n": 1,
        "x": None,
    }


async def test_a_batch_comes_back_as_it_went() -> None:
    documents = [document("a"), document("b", "ü" * 100)]
    packing = await pack(documents, max_bytes=10_000)
    assert [entry.documents for entry in packing.batches] == [2]
    assert await unpack(packing.batches[0].payload) == documents


def noise_of(length: int, seed: int) -> str:
    """Text that does not compress well."""
    return "".join(chr(33 + (seed + at * at * 31) % 50_000) for at in range(length))


async def test_a_document_of_many_chunks_comes_back_whole_and_clean() -> None:
    whole = replace(
        document("long"),
        chunks=[Chunk(ordinal=at, heading=f"h{at}", anchor="", body=f"line\n{at}\r") for at in range(1000)],
        source_state={"nested": ["\u2028", 1.5, None]},
    )
    dirty = replace(document("dirty\x00", "a\ud800b"), metadata={"k\x00": "v\ud800"})
    packing = await pack([whole, dirty, document("last")], max_bytes=10**6)
    back = await unpack(packing.batches[0].payload)
    assert back[0] == whole
    assert (back[1].source_id, back[1].chunks[0].body, back[1].metadata) == ("dirty", "a?b", {"k": "v?"})
    assert back[2] == document("last")


async def test_what_does_not_fit_in_one_batch_goes_into_several() -> None:
    noise = [
        document(f"d{at}", "".join(chr(33 + (at * 7919 + n * n) % 5000) for n in range(400)))
        for at in range(8)
    ]
    huge = document("huge", noise_of(20_000, 1))
    packing = await pack([*noise[:4], huge, *noise[4:]], max_bytes=3000)
    assert [entry.source_id for entry in packing.oversize] == ["huge"]
    assert len(packing.batches) > 1
    back = [entry for batch in packing.batches for entry in await unpack(batch.payload)]
    assert back == noise
    assert all(len(batch.payload) <= 3000 for batch in packing.batches)


@pytest.mark.parametrize("payload", [b"", b"no", b"x\x9c\x03\x00\x00\x00\x00\x01", b"x\x9cK"])
async def test_a_damaged_batch_is_named(payload: bytes) -> None:
    with pytest.raises(BatchUnreadable):
        await unpack(payload)


def test_the_last_of_each_document_counts() -> None:
    last = last_of_each([document("b", "1"), document("a", "2"), document("b", "3")])
    assert [(entry.source_id, entry.chunks[0].body) for entry in last] == [("a", "2"), ("b", "3")]


def test_fusing_ranks_what_both_lists_have_first() -> None:
    a, b, c, a2 = (Found(document=at, ordinal=ordinal) for at, ordinal in ((1, 0), (2, 0), (3, 0), (1, 1)))
    fused = fuse([[a, b, a2], [b, c, a]])
    assert [entry.document for entry, _ in fused] == [2, 1, 3]
    assert fused[1][0] == a  # the better chunk of document 1
    assert fuse([[a], [a]])[0][1] == pytest.approx(1)
    assert fuse([[], []]) == []


def test_a_snippet_shows_the_words_that_were_looked_for() -> None:
    body = "Nothing here. " * 60 + "The semaphore <b>guards</b> asyncio tasks. " + "More of nothing. " * 60
    shown = snippet(body, "asyncio semaphores")
    assert "semaphore <b>guards</b> asyncio" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert len(shown) <= LONGEST + 4
    assert snippet("short\n text", "x") == "short text"
    assert snippet("word " * 200, "absent").startswith("word word")


@given(st.text(), st.text())
def test_a_snippet_is_bounded_whatever_comes(body: str, query: str) -> None:
    assert len(snippet(body, query, longest=60)) <= 64


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "fetch_outcome": None,
        "job_state": "running",
        "job_stage": "fetching",
        "job_error": None,
        "batches_running": 0,
        "batches_pending": 0,
        "batches_retrying": 0,
        "batches_error": None,
    } | changes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"job_state": "pending"}, "a slot to fetch"),
        ({"job_state": "retrying", "job_error": "no answer"}, "the next try: no answer"),
        ({"job_state": None}, "the next check, which starts it anew"),
        ({"job_stage": CATCHING_UP, "batches_pending": 8}, "processing to catch up"),
        (
            {"job_stage": CATCHING_UP, "batches_retrying": 8, "batches_error": "the model server is away"},
            "processing to catch up: the model server is away",
        ),
        ({"fetch_outcome": "complete", "batches_running": 1, "batches_pending": 3}, None),
        ({"fetch_outcome": "complete", "batches_pending": 3}, "a slot to process 3 batches"),
        (
            {"fetch_outcome": "complete", "batches_retrying": 1, "batches_error": "busy"},
            "the next try of 1 batch: busy",
        ),
    ],
)
def test_every_wait_has_a_reason(changes: dict[str, Any], reason: str | None) -> None:
    assert waiting_for(facts(**changes)) == reason


def test_errors_of_batches_are_of_hive() -> None:
    assert issubclass(BatchUnreadable, HiveError)
