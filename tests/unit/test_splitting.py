"""Chunks: nothing lost, nothing too long, the same every time."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.ingest.connectors.port import Section, SourceDocument
from hive.ingest.parsing.cleaning import clean
from hive.ingest.splitting import content_hash, split

WORDS = "Lorem ipsum dolor sit amet, consetetur sadipscing elitr. "


def document(*sections: Section, title: str = "Title", link: str = "x:", **more: Any) -> SourceDocument:
    return SourceDocument(source_id="x:", title=title, link=link, sections=sections, **more)


def letters(text: str) -> str:
    return re.sub(r"\s", "", text)


headings = st.lists(st.sampled_from(["Alpha", "Beta", "Gamma"]), max_size=3).map(" › ".join)
bodies = st.one_of(
    st.text(max_size=400),
    st.builds(
        lambda text, times: text * times,
        st.sampled_from([WORDS, "x", "# A\n\n- b\n", "wörter ", "\n\n"]),
        st.integers(0, 120),
    ),
)
sections = st.lists(
    st.builds(
        Section, body=bodies, heading=headings, anchor=st.sampled_from(["", "a", "b"]), markdown=st.booleans()
    ),
    max_size=8,
)


@settings(deadline=None)
@given(sections, st.integers(20, 500))
def test_nothing_is_lost_and_every_chunk_fits(parts: list[Section], limit: int) -> None:
    whole = document(*parts)
    chunks = split(whole, chunk_characters=limit, overlap=0)
    assert chunks == split(whole, chunk_characters=limit, overlap=0)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert 0 < len(chunk.body) <= limit
        assert chunk.body.strip()
    # Every letter of every section, in order; between them only headings that joining wrote out.
    text = letters("".join(chunk.body for chunk in chunks))
    position = 0
    for part in parts:
        for piece in re.findall(r"\S+", clean(part.body)):
            position = text.index(piece[0], position)
            for letter in letters(piece):
                position = text.index(letter, position) + 1


@settings(deadline=None)
@given(bodies, st.booleans(), st.integers(50, 400))
def test_one_section_comes_out_letter_by_letter(body: str, markdown: bool, limit: int) -> None:
    chunks = split(document(Section(body=body, markdown=markdown)), chunk_characters=limit, overlap=0)
    assert letters("".join(chunk.body for chunk in chunks)) == letters(clean(body))


def test_overlap_repeats_text_within_the_limit() -> None:
    body = " ".join(f"word{number}" for number in range(400))
    chunks = split(document(Section(body=body)), chunk_characters=200, overlap=60)
    assert all(len(chunk.body) <= 200 for chunk in chunks)
    assert any(one.body.split()[-1] in two.body.split() for one, two in pairwise(chunks))
    with pytest.raises(ValueError, match="overlap"):
        split(document(Section(body=body)), chunk_characters=200, overlap=200)


def test_a_long_line_is_cut_quickly() -> None:
    chunks = split(document(Section(body="x" * 1_000_000)), chunk_characters=1000, overlap=0)
    assert sum(len(chunk.body) for chunk in chunks) == 1_000_000


def test_short_neighbours_are_joined_under_what_they_share() -> None:
    chunks = split(
        document(
            Section(body="acquire()\n\nWaits.", heading="Lock › class Lock › acquire()", anchor="acquire"),
            Section(
                body="release()\n\nGives back.", heading="Lock › class Lock › release()", anchor="release"
            ),
            Section(body="Nothing to do with it.", heading="Event", anchor="event"),
        ),
        chunk_characters=1200,
        overlap=0,
    )
    assert [(chunk.heading, chunk.anchor) for chunk in chunks] == [
        ("Lock › class Lock", "acquire"),
        ("Event", "event"),
    ]
    assert chunks[0].body == "acquire()\n\nWaits.\n\nrelease()\n\nGives back."


def test_joining_writes_out_headings_that_are_not_shared() -> None:
    chunks = split(
        document(
            Section(body="one", heading="A › B", anchor="b"), Section(body="two", heading="A › C", anchor="c")
        ),
        chunk_characters=300,
        overlap=0,
    )
    assert [(chunk.heading, chunk.body) for chunk in chunks] == [("A", "B\n\none\n\nC\n\ntwo")]


def test_a_full_section_stays_alone() -> None:
    chunks = split(
        document(Section(body=WORDS * 10, heading="A › B"), Section(body=WORDS * 10, heading="A › C")),
        chunk_characters=1200,
        overlap=0,
    )
    assert [chunk.heading for chunk in chunks] == ["A › B", "A › C"]


def test_empty_documents_have_no_chunks() -> None:
    assert split(document(Section(body=" \n\x00")), chunk_characters=100, overlap=0) == []
    assert split(document(), chunk_characters=100, overlap=0) == []


def test_content_hash_sees_what_is_indexed_and_nothing_else() -> None:
    def hashed(whole: SourceDocument) -> str:
        return content_hash(whole, split(whole, chunk_characters=300, overlap=0))

    plain = document(Section(body="text", heading="H", anchor="a"))
    base = hashed(plain)
    assert re.fullmatch(r"[0-9a-f]{64}", base)
    assert (
        hashed(document(Section(body="text", heading="H", anchor="a"), source_state={"v": 1}, revision=7))
        == base
    )
    different = [
        document(Section(body="text!", heading="H", anchor="a")),
        document(Section(body="text", heading="I", anchor="a")),
        document(Section(body="text", heading="H", anchor="b")),
        document(Section(body="text", heading="H", anchor="a"), title="Other"),
        document(Section(body="text", heading="H", anchor="a"), link="y:"),
        document(Section(body="text", heading="H", anchor="a"), metadata={"k": "v"}),
    ]
    assert len({base, *map(hashed, different)}) == 7
