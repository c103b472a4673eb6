"""Frames and values: whatever goes in comes out, and whatever else arrives is a FrameError, never a crash."""

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hive.ingest.fetching import (
    BatchReady,
    CheckpointReached,
    Chunk,
    DocumentFailed,
    FetchDone,
    FetchFailed,
    FetchRequest,
    Frame,
    ParsedDocument,
    Progressed,
    Question,
)
from pools.fetch.coding import Assembler, frames_of, read_request, request_frame
from pools.fetch.frames import MAX_FRAME_BYTES, Framed, FrameError, Kind, Unpacker, pack

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(text, json_values, max_size=3)
chunks = st.builds(Chunk, ordinal=st.integers(0, 9999), heading=text, anchor=text, body=text)
documents = st.builds(
    ParsedDocument,
    source_id=text,
    title=text,
    link=text,
    revision=st.none() | st.integers(-(2**63), 2**63 - 1),
    content_hash=text,
    source_state=objects,
    metadata=st.dictionaries(text, text, max_size=3),
    chunks=st.lists(chunks, max_size=4).map(tuple),
)
failures = st.lists(
    st.builds(DocumentFailed, source_id=text, link=text, code=text, summary=text), max_size=3
).map(tuple)
counts = st.integers(0, 10**9)
values = st.one_of(
    st.builds(
        BatchReady,
        documents=st.lists(documents, max_size=4).map(tuple),
        failures=failures,
        checkpoint=json_values,
        unchanged=counts,
    ),
    st.builds(CheckpointReached, checkpoint=json_values, failures=failures, unchanged=counts),
    st.builds(Question, source_ids=st.lists(text, max_size=5).map(tuple)),
    st.builds(Progressed, note=text),
    st.builds(
        FetchFailed,
        code=text,
        summary=text,
        transient=st.booleans(),
        retry_after_seconds=st.none() | st.floats(0, 1e6),
    ),
    st.builds(FetchDone, complete=st.booleans()),
)


def decode(data: bytes, cuts: Iterable[int] = ()) -> list[Frame]:
    """What a parent makes of ``data``, arriving in pieces that end at ``cuts``."""
    unpacker, assembler, found = Unpacker(), Assembler(), list[Frame]()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in itertools.pairwise(edges):
        unpacker.feed(data[start:end])
        while (framed := unpacker.next()) is not None:
            frame = assembler.accept(framed)
            if frame is not None:
                found.append(frame)
    return found


@given(st.lists(values, max_size=5), st.lists(st.integers(0, 5000), max_size=20))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_values_survive_the_wire_however_it_cuts_them(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(part for value in sent for part in frames_of(value))
    assert decode(data, cuts) == sent


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_are_an_error_or_wait_for_more(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        decode(data)


@given(st.sampled_from(Kind), json_values | st.lists(json_values, max_size=3) | objects)
@settings(max_examples=400, deadline=None)
def test_a_frame_with_the_wrong_payload_is_an_error(kind: Kind, payload: Any) -> None:
    with contextlib.suppress(FrameError):
        Assembler().accept((kind, payload))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_payload_with_one_field_spoilt_is_an_error_or_a_value(data: st.DataObject) -> None:
    value = data.draw(values)
    framed = list(unpack(b"".join(frames_of(value))))
    place = data.draw(st.integers(0, len(framed) - 1))
    _, payload = framed[place]
    if isinstance(payload, dict) and payload:
        payload[data.draw(st.sampled_from(sorted(payload)))] = data.draw(json_values)
    assembler = Assembler()
    with contextlib.suppress(FrameError):
        for one in framed:
            assembler.accept(one)


def unpack(data: bytes) -> Iterable[Framed]:
    unpacker = Unpacker()
    unpacker.feed(data)
    while (framed := unpacker.next()) is not None:
        yield framed


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x00\x00\x00\x00\x17", "length of 0"),
        (b"\xff\xff\xff\xff\x17", "length of 4294967295"),
        (b"\x00\x00\x00\x03\xee{}", "unknown kind 238"),
        (b"\x00\x00\x00\x03\x17{]", "not JSON"),
        (b"\x00\x00\x00\x03\x17\xff\xfe", "not JSON"),
        (pack(Kind.DONE, {}), "DONE frame does not fit"),
        (pack(Kind.CHUNKS, []), "without their DOCUMENT"),
        (pack(Kind.REQUEST, {}), "may not send a REQUEST"),
        (
            pack(Kind.BATCH, {"count": 1, "failures": [], "checkpoint": None, "unchanged": 0}),
            "arrived with 0",
        ),
        (b"\x00\x02\x00\x00\x17" + b"[" * 0x1FFFF, "not JSON: RecursionError"),
    ],
)
def test_malformed_frames_say_what_is_wrong(data: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        decode(data)


def test_an_oversized_frame_is_refused_by_both_sides() -> None:
    with pytest.raises(FrameError, match="larger than"):
        pack(Kind.PROGRESS, "x" * MAX_FRAME_BYTES)
    with pytest.raises(FrameError, match="length"):
        decode((MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"\x15")


def test_a_truncated_frame_waits_and_is_seen_as_partial() -> None:
    unpacker = Unpacker()
    unpacker.feed(pack(Kind.DONE, {"complete": True})[:-1])
    assert unpacker.next() is None
    assert unpacker.partial


def test_a_long_document_travels_in_small_frames() -> None:
    body = "x" * 10_000
    document = ParsedDocument(
        source_id="a",
        title="",
        link="",
        revision=None,
        content_hash="",
        source_state={},
        metadata={},
        chunks=tuple(Chunk(ordinal=n, heading="", anchor="", body=body) for n in range(500)),
    )
    batch = BatchReady(documents=(document,), failures=(), checkpoint=None, unchanged=0)
    parts = list(frames_of(batch))
    assert max(map(len, parts)) < 300_000
    assert decode(b"".join(parts)) == [batch]


def test_a_request_survives_the_wire() -> None:
    request = FetchRequest(
        kind="web",
        config={"start": ["https://example.org"]},
        credential={"token": "s"},
        checkpoint=[1, {"a": None}],
        batch_documents=16,
        batch_bytes=1,
        max_document_bytes=2,
        chunk_characters=3,
        chunk_overlap_characters=0,
    )
    (framed,) = unpack(request_frame(request, "module:Class"))
    assert read_request(framed[1]) == (request, "module:Class")
    with pytest.raises(FrameError):
        read_request({"request": {}})
