"""The wire format: what is sent arrives, and nothing that arrives can do harm."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.broker.port import Lane, Message
from hive.broker.wire import Unparsable, decode, encode
from hive.errors import InvalidInput
from hive.ids import MessageId, QueueName, TaskName, TenantId, new_message_id

QUEUE = QueueName("work")

text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
ids = st.uuids().map(MessageId)
messages = st.builds(
    Message,
    id=ids,
    queue=st.just(QUEUE),
    task=text.filter(bool).map(TaskName),
    tenant=st.none() | st.from_regex(r"[a-z0-9][a-z0-9_]{0,47}", fullmatch=True).map(TenantId),
    args=st.dictionaries(text, values, max_size=4),
    lane=st.sampled_from(Lane),
    key=st.none() | text,
    while_running=st.sampled_from(["rerun", "drop"]),
    resource=st.none() | text,
    cost=st.integers(1, 1_000_000),
    delay_seconds=st.floats(0, 1e6),
    expires_seconds=st.none() | st.floats(0.001, 1e6),
    max_attempts=st.integers(1, 32_767),
    parent=st.none() | ids,
    trace=st.none() | text,
)


@given(messages)
def test_what_is_sent_arrives(message: Message) -> None:
    assert decode(encode(message), QUEUE) == message


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_unparsable(raw: bytes) -> None:
    with pytest.raises(Unparsable):
        decode(raw, QUEUE)


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


FIELDS = ["v", "id", "task", "args", "tenant", "lane", "key", "drop", "resource", "cost", "delay", "expires"]
FIELDS += ["max", "parent", "trace", "later"]
wrong_fields = st.dictionaries(st.sampled_from(FIELDS), anything, min_size=1, max_size=3)


@settings(max_examples=300)
@given(messages, wrong_fields)
def test_wrong_fields_are_a_message_or_unparsable(message: Message, wrong: dict[str, Any]) -> None:
    fields = {**json.loads(encode(message)), **wrong}
    raw = json.dumps(fields).encode("utf-8", "surrogatepass")
    try:
        read = decode(raw, QUEUE)
    except Unparsable:
        return
    # What is accepted can be sent on.
    assert decode(encode(read), QUEUE) == read


@settings(max_examples=300)
@given(messages, st.data())
def test_a_damaged_message_is_a_message_or_unparsable(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Unparsable):
        encode(decode(bytes(raw), QUEUE))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"v": 1}',
        b'{"v": true, "id": "0", "task": "t", "args": {}}',
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"v": 1e999}',
        b'{"v": NaN}',
        b'{"v": ' + b"9" * 5_000 + b"}",
        b"\xff\xfe",
        b'{"v": 1, "v": "\\ud800"}',
        b"x" * 200_000,
    ],
)
def test_known_traps(raw: bytes) -> None:
    with pytest.raises(Unparsable):
        decode(raw, QUEUE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lane", 3),
        ("cost", 0),
        ("max", 0),
        ("delay", -1),
        ("expires", 0),
        ("tenant", "No"),
        ("v", 2),
        ("v", 1.5),
    ],
)
def test_values_out_of_range(field: str, value: Any) -> None:
    message = Message(id=new_message_id(), queue=QUEUE, task=TaskName("t"), tenant=None, args={})
    with pytest.raises(Unparsable, match=r"tenant|version|" + field):
        decode(json.dumps({**json.loads(encode(message)), field: value}).encode(), QUEUE)


@pytest.mark.parametrize("field", ["cost", "max_attempts", "delay_seconds", "expires_seconds"])
@pytest.mark.parametrize("wrong", [True, "5", 5.5, 5.0])
def test_what_is_no_such_number_is_refused_and_spoils_nothing(field: str, wrong: Any) -> None:
    plain = Message(id=new_message_id(), queue=QUEUE, task=TaskName("t"), tenant=None, args={})
    good = plain._replace(**{field: int(wrong)})
    encode(good)
    if isinstance(wrong, float) and field.endswith("seconds"):
        encode(plain._replace(**{field: wrong}))
    else:
        with pytest.raises(InvalidInput, match=field):
            encode(plain._replace(**{field: wrong}))
    assert decode(encode(good), QUEUE) == good


def test_arguments_too_long_are_unparsable() -> None:
    message = Message(id=new_message_id(), queue=QUEUE, task=TaskName("t"), tenant=None, args={})
    fields = {**json.loads(encode(message)), "args": {"t": "x" * 66_000}}
    with pytest.raises(Unparsable, match="args"):
        decode(json.dumps(fields).encode(), QUEUE)


def test_a_later_field_is_passed_over() -> None:
    message = Message(id=new_message_id(), queue=QUEUE, task=TaskName("t"), tenant=None, args={})
    assert decode(json.dumps({**json.loads(encode(message)), "later": [1]}).encode(), QUEUE) == message


def test_arguments_end_at_64_kib() -> None:
    def message(length: int) -> Message:
        return Message(
            id=new_message_id(), queue=QUEUE, task=TaskName("t"), tenant=None, args={"t": "x" * length}
        )

    longest = message(64 * 1024 - len('{"t":""}'))
    assert decode(encode(longest), QUEUE) == longest
    with pytest.raises(InvalidInput, match="65536"):
        encode(message(64 * 1024))
