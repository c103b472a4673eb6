"""What owners may say about a connector, and what hive adds."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hive.errors import InvalidInput
from hive.ingest.connectors import catalogue
from hive.ingest.connectors.files import FilesConnector
from hive.ingest.connectors.web import WebConnector
from hive.settings import WebConnector as WebSettings


@pytest.mark.parametrize(
    ("kind", "config", "field"),
    [
        ("files", {}, "config.path"),
        ("files", {"path": ""}, "config.path"),
        ("files", {"path": "relative"}, "config.path"),
        ("files", {"path": "/a\x00b"}, "config.path"),
        ("files", {"path": "/x", "include": [""]}, "config.include.0"),
        ("files", {"path": "/x", "exclude": ["../y"]}, "config.exclude.0"),
        ("files", {"path": "/x", "roots": ["/"]}, "config.roots"),
        ("files", {"path": "/x", "refused": []}, "config.refused"),
        ("web", {}, "config.start"),
        ("web", {"start": "ftp://example.org/"}, "config.start.0"),
        ("web", {"start": "example.org"}, "config.start.0"),
        ("web", {"start": "http://"}, "config.start.0"),
        ("web", {"start": "http://user:word@example.org/"}, "config.start.0"),
        ("web", {"start": "http://example.org:99999/"}, "config.start.0"),
        ("web", {"start": ["http://a.example/", "http://b.example/"]}, "config.start"),
        ("web", {"start": "http://127.0.0.1/"}, "config.start"),
        ("web", {"start": "http://[::1]:80/"}, "config.start"),
        ("web", {"start": "http://localhost:8000/"}, "config.start"),
        ("web", {"start": "http://example.org", "max_pages": -1}, "config.max_pages"),
        ("web", {"start": "http://example.org", "max_depth": -1}, "config.max_depth"),
        ("web", {"start": "http://example.org", "user_agent": "Mozilla"}, "config.user_agent"),
        ("ftp", {}, "kind"),
    ],
)
def test_refusals_name_the_field(kind: str, config: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        catalogue.validate(kind, config)
    assert caught.value.field == field


def test_private_start_is_refused_by_that_word_and_allowed_with_the_flag() -> None:
    with pytest.raises(InvalidInput, match="private"):
        catalogue.validate("web", {"start": "http://192.168.1.1/"})
    allowed = catalogue.validate("web", {"start": "http://192.168.1.1/", "allow_private": True})
    assert allowed == {"start": ["http://192.168.1.1/"], "allow_private": True}


def test_validated_config_is_stable() -> None:
    for kind, config in (
        ("files", {"path": "/srv//docs/", "include": ["*.md"]}),
        ("web", {"start": "https://example.org/docs/", "max_pages": 50, "exclude": ["/old/*"]}),
    ):
        once = catalogue.validate(kind, config)
        assert catalogue.validate(kind, once) == once
    assert catalogue.validate("files", {"path": "/srv//docs/"}) == {"path": "/srv/docs"}


def test_prepared_config_is_what_the_connector_takes() -> None:
    web = WebSettings(user_agent="my-crawler", max_pages=7)
    more: dict[str, Any] = {
        "roots": [Path("/srv")],
        "refused": [Path("/state")],
        "web": web,
        "max_document_bytes": 9,
    }
    files = FilesConnector.Config.model_validate(catalogue.prepared("files", {"path": "/srv/a"}, **more))
    assert files.model_dump() == {
        "path": "/srv/a",
        "include": (),
        "exclude": (),
        "roots": ("/srv",),
        "refused": ("/state",),
        "max_document_bytes": 9,
    }
    site = WebConnector.Config.model_validate(
        catalogue.prepared("web", {"start": "http://example.org"}, **more)
    )
    assert site.model_dump(include={"user_agent", "max_pages", "max_depth"}) == {
        "user_agent": "my-crawler",
        "max_pages": 7,
        "max_depth": 10,
    }
    assert (
        catalogue.prepared("web", {"start": "http://example.org", "max_pages": 3}, **more)["max_pages"] == 3
    )


def test_kinds_are_described() -> None:
    assert [each.kind for each in catalogue.describe()] == ["files", "web"]
    for each in catalogue.describe():
        assert each.schema["properties"]
        assert catalogue.connector(each.kind).kind == each.kind


def test_the_parent_loads_no_parsers() -> None:
    heavy = (
        "lxml",
        "trafilatura",
        "pypdf",
        "docx",
        "protego",
        "semantic_text_splitter",
        "markdown_it",
        "aiohttp",
    )
    code = f"""
import sys
from hive.ingest.connectors import catalogue
catalogue.validate("web", {{"start": "http://example.org/"}})
catalogue.describe()
print([name for name in {heavy!r} if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
