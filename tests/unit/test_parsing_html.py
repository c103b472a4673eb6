"""HTML: the main part, its structure, its anchors; nothing hostile hurts."""

import pytest

from hive.ingest.parsing.html import page_links, parse_html
from hive.ingest.parsing.html_tree import load
from hive.ingest.parsing.parsed import Parsed, ParseFailure
from hive.ingest.parsing.reader import read

WORDS = "The quick brown fox jumps over the lazy dog, and nobody knows why it does so. "


def parse(text: str) -> Parsed:
    return parse_html(text.encode(), "page.html")


def whole_text(parsed: Parsed) -> str:
    return "\n".join(section.body for section in parsed.sections)


def test_sphinx_page_gets_sections_by_heading_and_by_definition() -> None:
    parsed = parse("""
        <html><head><title>Two Locks &#8212; Site 3.2 documentation</title></head><body>
        <div class="related"><ul><li>menu</li></ul></div>
        <div class="body" role="main"><section id="two-locks"><span id="old"></span>
        <h1>Two Locks<a class="headerlink" href="#two-locks">¶</a></h1><p>Intro with <code>code</code>.</p>
        <section id="lock"><h2>Lock<a class="headerlink" href="#lock">¶</a></h2><p>About.</p>
        <dl class="py class"><dt class="sig" id="m.Lock"><em>class </em><span>m.</span><span>Lock</span>
        <a class="headerlink" href="#m.Lock">¶</a></dt><dd><p>A mutex.</p>
        <dl><dt id="m.Lock.acquire">acquire()</dt><dd><p>Waits.</p></dd></dl></dd></dl>
        <p>Afterwards.</p></section></section></div><footer>imprint</footer></body></html>""")
    assert parsed.title == "Two Locks"
    assert [(section.heading, section.anchor) for section in parsed.sections] == [
        ("", "two-locks"),
        ("Lock", "lock"),
        ("Lock › class m.Lock", "m.Lock"),
        ("Lock › class m.Lock › acquire()", "m.Lock.acquire"),
        ("Lock", "lock"),
    ]
    assert parsed.sections[0].body == "Intro with code."
    assert parsed.sections[2].body == "class m.Lock\n\nA mutex."
    assert parsed.sections[4].body == "Afterwards."
    assert "menu" not in whole_text(parsed)
    assert "imprint" not in whole_text(parsed)
    assert "¶" not in whole_text(parsed)


def test_lists_tables_and_code_keep_their_shape() -> None:
    parsed = parse("""<main><ul><li><p>one</p></li><li>two<ol><li>deep</li><li>deeper</li></ol></li></ul>
        <table><tr><th>name</th><th><p>value</p></th></tr><tr><td>a</td><td>b <b>c</b></td></tr></table>
        <pre>def f():
    return  1</pre><p>x<br>y</p></main>""")
    assert whole_text(parsed) == (
        "- one\n- two\n  1. deep\n  2. deeper\n\nname | value\na | b c\n\ndef f():\n    return  1\n\nx\ny"
    )


def test_layout_table_is_no_line() -> None:
    parsed = parse("<main><table><tr><td><h2>Left</h2><p>one</p></td><td><p>two</p></td></tr></table></main>")
    assert parsed.sections[0].body == "one\n\ntwo"


def test_scripts_navigation_and_hidden_text_are_dropped_and_tails_kept() -> None:
    parsed = parse("""<main>a<script>evil()</script> b<nav>menu</nav> c<span hidden>no</span> d
        <style>x{}</style><noscript>no</noscript><template>no</template><a href="#x">#</a> e</main>""")
    assert whole_text(parsed) == "a b c d e"


def test_heading_without_text_is_not_lost() -> None:
    parsed = parse("<main><h1>Top</h1><p>text</p><h2>Lonely</h2></main>")
    assert [section.body for section in parsed.sections] == ["text", "Lonely"]


def test_title_comes_from_the_title_the_heading_or_the_file() -> None:
    assert parse("<title>Queues — Site</title><main><h1>Queues</h1><p>x</main>").title == "Queues — Site"
    assert (
        parse("<title>Task Groups | Site</title><main><h1>Task Groups</h1><p>x</main>").title == "Task Groups"
    )
    assert parse("<main><h1>Only Heading</h1><p>x</main>").title == "Only Heading"
    assert parse("<main><p>x</main>").title == "page.html"


def test_main_part_is_found_where_the_page_does_not_mark_it() -> None:
    menu = "".join(f"<li><a href='/{number}'>Entry {number}</a></li>" for number in range(60))
    body = "".join(f"<p>{number}. {WORDS.replace('dog', f'dog{number}') * 3}</p>" for number in range(8))
    parsed = parse(
        f"<body><div class='menu'><ul>{menu}</ul></div>"
        f"<div class='content'><h2 id='why'>Why foxes jump</h2>{body}</div>"
        "<footer>All rights reserved by nobody at all</footer></body>"
    )
    text = whole_text(parsed)
    assert "quick brown fox" in text
    assert "Entry 40" not in text
    assert "All rights reserved" not in text
    assert any(
        section.heading == "Why foxes jump" or parsed.title == "Why foxes jump" for section in parsed.sections
    )
    assert any(section.anchor == "why" for section in parsed.sections)


def test_short_page_is_taken_whole_without_its_footer() -> None:
    parsed = parse(
        "<body><header>Site</header><h1>Hi</h1><p>A short note.</p><footer>imprint</footer></body>"
    )
    assert whole_text(parsed) == "A short note."


@pytest.mark.parametrize(
    "late", ["<p>quokka</p></body></html>", "</body></html>quokka", "</body></html><p>quokka</p>"]
)
def test_text_added_at_the_end_of_a_page_counts(late: str) -> None:
    page = f"<html><body><div role='main'><p>{WORDS}</p></div>"
    assert "quokka" in whole_text(parse(page + late))


def test_depth_and_rubbish_are_bounded() -> None:
    deep = "<body>" + "<div>" * 1000 + "<p>bottom</p>" + "</div>" * 1000 + "<p>after</p>"
    assert "bottom" in whole_text(parse(deep))
    assert "after" in whole_text(parse(deep))
    with pytest.raises(ParseFailure, match="deeply"):
        parse("<div>" * 100_000 + "x")
    assert "x" in whole_text(parse("<<<>>><p>x</p><![CDATA[<table></p><li></ul>"))


def test_entities_are_not_expanded() -> None:
    bomb = (
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    )
    text = whole_text(parse(f"{bomb}<main><p>text &b; &f; end</p></main>"))
    assert "root:" not in text
    assert "aaaa" not in text


def test_huge_page_is_refused() -> None:
    with pytest.raises(ParseFailure) as caught:
        parse("<p>" + "x" * 21_000_000)
    assert caught.value.code == "too_large"


def test_nul_bytes_and_lone_surrogates_do_not_get_through() -> None:
    text = whole_text(parse("<main><p>a\x00b&#xD800;c&#0;d\u200b</p></main>"))
    assert text.encode("utf-8")
    assert "\x00" not in text
    assert text.startswith("ab")


def test_links_and_wishes_of_a_page() -> None:
    links = page_links(
        load(
            b"""<head><base href="/b/"><link rel="canonical" href="/c"><meta name="Robots" content="noindex,
            nofollow"> </head><a href=" x ">1</a><area href="y"><a name="z">2</a>"""
        )
    )
    assert links.hrefs == ["x", "y"]
    assert (links.base, links.canonical, links.noindex, links.nofollow) == ("/b/", "/c", True, True)


@pytest.mark.parametrize(("data", "code"), [(b"", "empty"), (b" \n ", "empty"), (b"<html></html>", "empty")])
def test_empty_pages(data: bytes, code: str) -> None:
    with pytest.raises(ParseFailure) as caught:
        read(data, "x.html")
    assert caught.value.code == code
