"""Bodies that do not fit are refused by the name of what is wrong with them."""

import pytest
from pydantic import ValidationError

from hive.errors import InvalidInput
from supervisor.http.bodies import Enqueue, NewConnector
from supervisor.http.parsing import parse_json
from supervisor.http.problems import refusal


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "line 1, column 1"),
        (b'{"a": 1,\n "b": }', "line 2, column 7"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 100_000, "nested"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested"),
        (b'{"a": "x\\u0000y"}', "NUL"),
        (b'{"a": {"b": ["\\u0000"]}}', "a.b.0: contains a NUL"),
        (b'{"\\u0000": 1}', "NUL"),
        (b'{"a": "\\ud800"}', "surrogate"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_json(raw)
    assert said in refused.value.message


def test_json_comes_through() -> None:
    assert parse_json('{"a": ["ä", 1, null, {"b": "𝄞"}]}'.encode()) == {"a": ["ä", 1, None, {"b": "𝄞"}]}


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({}, "kind"),
        ({"kind": "files", "name": "a", "nmae": "b"}, "nmae"),
        ({"kind": "files", "name": ""}, "name"),
        ({"kind": "files", "name": " a"}, "name"),
        ({"kind": "files", "name": "a", "config": "x"}, "config"),
        ({"kind": "files", "name": "a", "refresh_seconds": "600"}, "refresh_seconds"),
        ({"kind": "files", "name": "a", "refresh_seconds": -1}, "refresh_seconds"),
        ({"kind": "files", "name": "a", "add_root": 1}, "add_root"),
    ],
)
def test_a_refusal_names_the_field(content: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError) as error:
        NewConnector.model_validate(content, strict=True)
    assert refusal(error.value).field == field


def test_a_refusal_never_repeats_the_value() -> None:
    with pytest.raises(ValidationError) as error:
        Enqueue.model_validate({"task": "a", "args": {}, "key": ["sesame"]}, strict=True)
    assert "sesame" not in str(refusal(error.value))
