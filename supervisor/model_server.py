"""The embedding model as a process of its own: OpenAI-compatible, small, offline.

Run as a script (``python model_server.py --uds PATH`` or ``--port N``). It imports nothing of hive: a model
that leaks, crashes or blocks takes nobody with it, and any compatible server can stand in its place by URL.

| route | answer |
|---|---|
| POST /v1/embeddings | ``{"input": "…" or ["…"], "encoding_format": "float" or "base64"}`` → unit vectors |
| GET /v1/models | the one model served here |
| GET /healthz | 200 as long as the loop turns; embedding runs in threads |

Once it listens it prints a line of JSON to standard output: ``{"listening": …, "model": …, "dimension": …}``.
It ends on SIGTERM, SIGINT, and when the process that started it ends (unless ``--standalone``).
"""

# ruff: noqa: E402 - the next two lines must come before the imports
import sys

# A script's own folder comes first on the path, and the folder `http` there would hide the library's.
sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]

import argparse
import asyncio
import base64
import contextlib
import ctypes
import functools
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import web

log = logging.getLogger("hive.model_server")

MODEL_NAME: Final = "wordllama-256"
DIMENSION: Final = 256
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_INPUTS: Final = 2048  # OpenAI's own limit
MAX_CHARACTERS: Final = 32_000  # of one input
MAX_WAITING: Final = 32  # requests; one more is told to come back
RETRY_AFTER_SECONDS: Final = 1
# A pass pads every text to its longest one and holds about 0.7 kB a character: this bounds it to some 15 MB.
PASS_CHARACTERS: Final = 20_000
NICENESS: Final = 5  # as hive's own server: hive, which renews leases, goes first; children that crawl, last
PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Model:
    """``embed`` gives one little-endian float32 row per text, each of length one. It is called in threads."""

    name: str
    dimension: int
    embed: Callable[[Sequence[str]], list[bytes]]


class Refused(Exception):
    """A request that cannot be answered: ``status``, and the error in OpenAI's shape."""

    def __init__(
        self, status: int, message: str, *, parameter: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter
        self.code = code

    def response(self) -> web.Response:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.parameter, "code": self.code}
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.status == 503 else None
        return web.json_response({"error": error}, status=self.status, headers=headers)


def load_wordllama() -> Model:
    """The static model out of its wheel. Never touches the network: the weights lie in the package."""
    import numpy as np
    import wordllama  # pyright: ignore[reportMissingTypeStubs]

    inference: Any = wordllama.WordLlama.load(
        dim=DIMENSION, cache_dir=Path(wordllama.__file__).parent, disable_download=True
    )

    def embed(texts: Sequence[str]) -> list[bytes]:
        rows: list[bytes] = [b""] * len(texts)
        for positions in passes(texts):
            vectors = inference.embed([texts[at] for at in positions], norm=False, batch_size=len(positions))
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            usable = np.isfinite(lengths) & (lengths > 0)
            vectors = np.where(usable, vectors / np.where(usable, lengths, 1), 0).astype("<f4")
            # A text without a token (white space, say) still needs a direction: cosine has none for zero.
            vectors[~usable[:, 0], 0] = 1
            for at, vector in zip(positions, vectors, strict=True):
                rows[at] = vector.tobytes()
        return rows

    return Model(MODEL_NAME, DIMENSION, embed)


def passes(texts: Sequence[str]) -> list[list[int]]:
    """Positions of ``texts``, short ones first, in groups whose padded size stays below PASS_CHARACTERS."""
    groups: list[list[int]] = []
    current: list[int] = []
    for at in sorted(range(len(texts)), key=lambda at: len(texts[at])):
        if current and (len(current) + 1) * len(texts[at]) > PASS_CHARACTERS:
            groups.append(current)
            current = []
        current.append(at)
    if current:
        groups.append(current)
    return groups


@dataclass(frozen=True, slots=True)
class Question:
    texts: list[str]
    as_base64: bool


def read_question(body: object, model: Model) -> Question:
    """The request, checked. Raises Refused naming the parameter."""
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    fields = cast(dict[str, object], body)
    asked = fields.get("model", model.name)
    if asked != model.name:
        raise Refused(
            404,
            f"model {str(asked)[:80]!r} is not served here, only {model.name!r}",
            parameter="model",
            code="model_not_found",
        )
    dimensions = fields.get("dimensions")
    if dimensions is not None and dimensions != model.dimension:
        raise Refused(400, f"this model has {model.dimension} dimensions", parameter="dimensions")
    form = fields.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise Refused(400, "encoding_format must be 'float' or 'base64'", parameter="encoding_format")
    given = fields.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise Refused(400, "input must be a string or a list of strings", parameter="input")
    for at, text in enumerate(cast(list[object], texts)):
        if not isinstance(text, str):
            raise Refused(400, f"input[{at}] is not a string; tokens are not accepted", parameter="input")
        if not text:
            raise Refused(400, f"input[{at}] is empty", parameter="input")
        if len(text) > MAX_CHARACTERS:
            raise Refused(400, f"input[{at}] is longer than {MAX_CHARACTERS} characters", parameter="input")
    if len(texts) > MAX_INPUTS:
        raise Refused(400, f"at most {MAX_INPUTS} inputs in one request", parameter="input")
    return Question(cast(list[str], texts), form == "base64")


def answer(question: Question, model: Model) -> bytes:
    """The response's body. Runs in a thread, since JSON of many floats takes its time."""
    rows = model.embed(question.texts)
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": base64.b64encode(row).decode()
            if question.as_base64
            else list(memoryview(row).cast("f")),
        }
        for at, row in enumerate(rows)
    ]
    tokens = sum(len(text) for text in question.texts) // 4  # an estimate; nobody pays by it here
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": data, "model": model.name, "usage": usage}).encode()


class Server:
    """The HTTP side: reads requests on the loop, embeds in threads, refuses what it has no room for."""

    def __init__(self, model: Model, *, threads: int, max_waiting: int) -> None:
        self._model = model
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="embed")
        self._room = threads + max_waiting
        self._inside = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/v1/embeddings", self.embeddings),
                web.get("/v1/models", self.models),
                web.get("/healthz", self.health),
            ]
        )
        return app

    async def embeddings(self, request: web.Request) -> web.Response:
        if self._inside >= self._room:
            return Refused(503, "too many requests wait already").response()
        self._inside += 1
        try:
            question = read_question(await self._body(request), self._model)
            work = functools.partial(answer, question, self._model)
            body = await asyncio.get_running_loop().run_in_executor(self._threads, work)
            return web.Response(body=body, content_type="application/json")
        except Refused as refused:
            return refused.response()
        finally:
            self._inside -= 1

    async def _body(self, request: web.Request) -> object:
        try:
            return json.loads(await request.read())
        except web.HTTPRequestEntityTooLarge as error:
            raise Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes") from error
        except (ValueError, RecursionError) as error:
            raise Refused(400, "the body is not JSON") from error

    async def models(self, _request: web.Request) -> web.Response:
        entry = {"id": self._model.name, "object": "model", "owned_by": "hive"}
        return web.json_response({"object": "list", "data": [entry]})

    async def health(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": "ok",
                "model": self._model.name,
                "dimension": self._model.dimension,
                "inside": self._inside,
            }
        )


def die_with_parent(parent: int) -> None:
    """End with the process that started this one. ``parent`` closes the gap before the kernel knows."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def refuse_taken(path: Path) -> None:
    """Exit 1 when another server answers on ``path``: binding would steal the name from it silently."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return
    log.error("another model server listens on %s already", path)
    sys.exit(1)


def inode_of(path: Path) -> int:
    return path.stat().st_ino


def remove_own(path: Path, inode: int) -> None:
    """Remove the socket file, unless another server has taken the name over since."""
    with contextlib.suppress(FileNotFoundError):
        if inode_of(path) == inode:
            path.unlink()


async def serve(model: Model, options: argparse.Namespace) -> None:
    """Listen until told to stop; leaves no socket file behind."""
    runner = web.AppRunner(
        Server(model, threads=options.threads, max_waiting=options.max_waiting).application(), access_log=None
    )
    await runner.setup()
    path: Path | None = options.uds
    inode = 0
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if path is not None:
        os.umask(0o077)
        await web.UnixSite(runner, str(path)).start()
        inode = inode_of(path)
        listening = f"unix:{path}"
    else:
        site = web.TCPSite(runner, options.host, options.port)
        await site.start()
        listening = f"http://{options.host}:{runner.addresses[0][1]}"
    try:
        ready = {"listening": listening, "model": model.name, "dimension": model.dimension}
        print(json.dumps(ready), flush=True)  # noqa: T201 - the line its starter waits for
        await stop.wait()
    finally:
        async with asyncio.timeout(5):
            await runner.cleanup()
        if path is not None:
            remove_own(path, inode)


def options_from(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hive model-server", description="Serve the built-in embedding model, OpenAI-compatible."
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--uds", type=Path, metavar="PATH", help="listen on a Unix socket (mode 0600)")
    where.add_argument("--port", type=int, metavar="N", help="listen on this port; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address for --port (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=min(2, os.cpu_count() or 1), help="default: %(default)s"
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=MAX_WAITING,
        metavar="N",
        help="requests that may wait for a thread before more are answered 503 (default: %(default)s)",
    )
    parser.add_argument(
        "--standalone", action="store_true", help="live on when the process that started it ends"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Returns the exit code: 0, or 1 when it cannot start."""
    parent = os.getppid()
    options = options_from(arguments)
    if not options.standalone:
        die_with_parent(parent)
        os.nice(NICENESS)
    try:
        model = load_wordllama()
    except (ImportError, OSError, ValueError) as error:
        sys.stderr.write(f"the embedding model cannot be loaded: {error}\n")
        return 1
    # wordllama calls basicConfig when it is imported; what counts here is set after that.
    logging.basicConfig(force=True, level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("wordllama").setLevel(logging.WARNING)
    if options.uds is not None:
        refuse_taken(options.uds)
    try:
        asyncio.run(serve(model, options))
    except OSError as error:
        log.error("cannot listen: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
