"""The embedding client: texts in, vectors out, over the API that OpenAI made common.

It knows hive's own model server (by Unix socket) and any compatible one (by URL). What the other side asks
for is honoured: it is the provider ``embedding`` (see ``hive.providers``).
"""

import binascii
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from hive.errors import ConfigurationError, NeedsOperator, Permanent, Transient
from hive.providers import BUSY, Providers, Throttled
from hive.retry_after import retry_after_seconds
from hive.settings import Embedding
from hive.vector import Vector

if TYPE_CHECKING:
    import aiohttp

PROVIDER: Final = "embedding"
REFUSED: Final = frozenset({400, 413, 422})
FORBIDDEN: Final = frozenset({401, 403})


START_SECONDS: Final = 5.0
START_POLL_SECONDS: Final = 0.05


class EmbedderDown(Transient):
    """The model server does not answer, or answers with an error of its own."""

    code = "embedder_down"


class EmbedderBusy(Throttled):
    """The model server has too much to do and asks to come back later."""

    code = "embedder_busy"


class EmbeddingRefused(Permanent):
    """The model server refuses these texts, and would refuse them again."""

    code = "embedding_refused"


class EmbedderLocked(NeedsOperator):
    """The model server refuses our key."""

    code = "embedder_locked"


class Embedder:
    """A client of one model server. ``socket_path``: hive's own, instead of ``settings.url``."""

    def __init__(
        self, settings: Embedding, *, socket_path: Path | None = None, providers: Providers | None = None
    ) -> None:
        self._settings = settings
        self._socket_path = socket_path
        base = "http://model/v1" if socket_path is not None else settings.url.rstrip("/")
        self._url = f"{base}/embeddings"
        self._providers = providers or Providers()
        self._session: aiohttp.ClientSession | None = None

    async def embed(self, texts: Sequence[str], *, timeout_seconds: float | None = None) -> list[Vector]:
        """One vector for each text, in order, in requests of ``batch_texts``.

        ``timeout_seconds``: deadline of one request, if not the settings', and of the wait for its turn.
        Raises EmbedderDown, Throttled (both Transient), EmbeddingRefused, EmbedderLocked. Cancelling it
        leaves nothing behind.
        """
        vectors: list[Vector] = []
        size = self._settings.batch_texts
        for start in range(0, len(texts), size):
            vectors += await self._request(texts[start : start + size], timeout_seconds)
        return vectors

    async def check(self, dimension: int) -> None:
        """Embed a word; raises ConfigurationError when the vectors do not fit an index of ``dimension``."""
        vector = (await self.embed(["hive"]))[0]
        if vector.dimension != dimension:
            raise ConfigurationError(
                f"embedding: model {self._settings.model!r} gives vectors of {vector.dimension} dimensions, "
                f"and the index holds {dimension}",
                remedy="set embedding.model to the model the index was built with",
            )

    async def close(self) -> None:
        """Close the connections. The embedder can be used again after that."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _started(self) -> None:
        """Wait for the socket of a server of hive's own that is being started, for a while."""
        if self._socket_path is None:
            return
        with anyio.move_on_after(START_SECONDS):
            while not self._socket_path.exists():  # noqa: ASYNC110 - another process makes the file
                await anyio.sleep(START_POLL_SECONDS)

    async def _request(self, texts: Sequence[str], timeout_seconds: float | None) -> list[Vector]:
        if timeout_seconds is None:  # somebody who waits for an answer is told at once
            await self._started()
        import aiohttp  # 90 ms, which a start need not wait for

        deadline = aiohttp.ClientTimeout(total=timeout_seconds or self._settings.request_seconds)
        body = {"model": self._settings.model, "input": list(texts), "encoding_format": "base64"}
        async with self._providers.call(PROVIDER, patience_seconds=timeout_seconds):
            try:
                async with self._open().post(self._url, json=body, timeout=deadline) as response:
                    content = await response.read()
            except TimeoutError as error:
                raise EmbedderDown(f"the model server did not answer within {deadline.total:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise EmbedderDown(f"the model server does not answer: {error}") from error
            if response.status == 200:
                return _vectors(content, len(texts))
            raise _error_of(response.status, response.headers, content)

    def _open(self) -> "aiohttp.ClientSession":
        import aiohttp

        # Made on first use, since it belongs to the running loop.
        if self._session is None or self._session.closed:
            key = self._settings.api_key.get_secret_value()
            connector = (
                aiohttp.UnixConnector(str(self._socket_path)) if self._socket_path is not None else None
            )
            self._session = aiohttp.ClientSession(
                connector=connector, headers={"Authorization": f"Bearer {key}"} if key else None
            )
        return self._session


def _error_of(status: int, headers: Mapping[str, str], content: bytes) -> Exception:
    said = f"the model server answered {status}: {_message(content)}"
    if status in BUSY:
        return EmbedderBusy(said, retry_after_seconds=retry_after_seconds(headers))
    if status in REFUSED:
        return EmbeddingRefused(said)
    if status in FORBIDDEN:
        return EmbedderLocked(said, remedy="set embedding.api_key")
    # A 404 is the wrong model or the wrong address: a person must act, but what waits shall not be given up.
    return EmbedderDown(said, retry_after_seconds=retry_after_seconds(headers))


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])[:200]
    except (ValueError, KeyError, TypeError):
        return content[:200].decode(errors="replace")


def _vectors(content: bytes, count: int) -> list[Vector]:
    try:
        data = cast(list[dict[str, Any]], json.loads(content)["data"])
        ordered = sorted(data, key=lambda entry: entry["index"])
        vectors = [_vector(entry["embedding"]) for entry in ordered]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise EmbedderDown(f"the model server's answer cannot be read: {error}") from error
    if len(vectors) != count or not all(vector.packed for vector in vectors):
        raise EmbedderDown(f"the model server answered {len(vectors)} vectors for {count} texts")
    return vectors


def _vector(given: str | list[float]) -> Vector:
    """Base64 of little-endian float32, or a list where a server does not know base64."""
    if isinstance(given, list):
        return Vector.of(given)
    return Vector.of_little_endian(binascii.a2b_base64(given, strict_mode=True))
