"""A fetch child may run as a user who cannot read the installation: after the preload it needs no more."""

import subprocess
import sys
from pathlib import Path

import document_samples as samples

PROGRAM = """
import asyncio, os, sys, threading, http.server, functools
from pools.fetch import preload
preload.load()
threads = len(os.listdir("/proc/self/task"))
from hive.ingest.connectors.port import Checkpoint, DocumentFailure, SourceDocument
from hive.ingest.connectors.catalogue import connector
from hive.ingest.splitting import content_hash, split

async def known(ids):
    return {}

async def run(kind, **config):
    source = connector(kind)
    seen = []
    async for item in source.items(source.Config.model_validate(config), None, None, known):
        if isinstance(item, SourceDocument):
            seen.append(item.link.rpartition("/")[2])
            content_hash(item, split(item, chunk_characters=1200, overlap=0))
        elif isinstance(item, DocumentFailure):
            seen.append(item.code)
    return seen

class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

folder = sys.argv[1]
roots = {sys.prefix, sys.base_prefix, *sys.path[1:]} - {""}
places = tuple(os.path.realpath(root) + "/" for root in roots)
loaded = []

def watch(event, arguments):
    if event == "open" and watching and threading.current_thread() is threading.main_thread():
        name = arguments[0] if isinstance(arguments[0], (str, bytes)) else ""
        name = os.path.realpath(os.fsdecode(name))
        if name.startswith(places) and not name.startswith(os.path.realpath(folder)):
            loaded.append(name)

watching = False
sys.addaudithook(watch)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
threading.Thread(target=server.serve_forever, daemon=True).start()
watching = True
files = asyncio.run(run("files", path=folder, roots=[folder]))
site = asyncio.run(run("web", start=f"http://localhost:{server.server_port}/", allow_private=True))
watching = False
print("threads", threads)
print("files", *files)
print("site", *site)
print("loaded", *loaded)
"""


def test_nothing_is_loaded_after_the_preload(tmp_path: Path) -> None:
    words = "There is something to read here, and it is not all the same as before. "
    (tmp_path / "marked.html").write_text("<main><h1>A</h1><p>b</p></main>")
    found = "".join(f"<p>{number} {words * 5}</p>" for number in range(10))
    menu = "".join(f'<li><a href="{number}">x</a></li>' for number in range(50))
    (tmp_path / "found.html").write_text(f"<body><div><ul>{menu}</ul></div><div>{found}</div></body>")
    (tmp_path / "poor.html").write_text(f"<body><div>{menu * 20}</div><b>{words}</b></body>")
    (tmp_path / "page.md").write_text("# A\n\ntext\n\n## B\n\n* x\n")
    (tmp_path / "page.rst").write_text("A\n=\n\ntext\n")
    (tmp_path / "russian.txt").write_bytes("Привет, это русский текст. ".encode("cp1251") * 9)
    (tmp_path / "page.pdf").write_bytes(samples.pdf(["an okapi"], title="x"))
    (tmp_path / "locked.pdf").write_bytes(samples.encrypted_pdf("secret"))
    (tmp_path / "page.docx").write_bytes(samples.word())
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = dict(line.partition(" ")[::2] for line in result.stdout.splitlines())
    assert lines["threads"] == "1"
    assert lines["files"].split() == [
        *("found.html", "encrypted", "marked.html", "page.docx", "page.md", "page.pdf", "page.rst"),
        *("poor.html", "russian.txt"),
    ]
    assert "found.html" in lines["site"]
    assert lines["loaded"].split() == []
