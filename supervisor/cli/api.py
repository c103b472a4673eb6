"""Talking to a running hive: ``http.client``, since larger libraries import slower than hive answers."""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from supervisor.cli.failure import CommandFailed, NotAnswering, Refused
from supervisor.cli.place import Place, not_running

LONGEST_TARGET = 8000  # HTTP servers, hive's among them, refuse longer first lines without a word of why
USUAL_SECONDS = 35.0  # a little more than the API's own deadline, so that its answer comes first


class Api:
    """Calls on behalf of the user. Each opens its own connection: hive may be started again in between."""

    def __init__(self, place: Place, *, token: str | None = None) -> None:
        self.place = place
        self._token = token

    def get(self, path: str, *, seconds: float = USUAL_SECONDS, **query: object) -> Any:
        """GET ``path``; parameters that are None are left out."""
        return self._call("GET", path, query=query, seconds=seconds)

    def post(
        self, path: str, body: Mapping[str, object] | None = None, *, seconds: float = USUAL_SECONDS
    ) -> Any:
        """POST ``body`` as JSON."""
        return self._call("POST", path, body=body, seconds=seconds)

    def delete(self, path: str) -> Any:
        """DELETE ``path``."""
        return self._call("DELETE", path)

    def items(self, path: str, **query: object) -> list[dict[str, Any]]:
        """GET a list."""
        return self._call("GET", path, query=query)["items"]

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        seconds: float = USUAL_SECONDS,
    ) -> Any:
        """One request. Raises NotRunning, NotAnswering or Refused."""
        address = self.place.address()
        headers = {
            "Authorization": f"Bearer {self._token or self.place.token()}",
            "Accept": "application/json",
        }
        if self.place.tenant is not None:
            headers["X-Hive-Tenant"] = quote(self.place.tenant, safe="")
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        if len(target) > LONGEST_TARGET:
            raise CommandFailed("this is more text than hive takes in one question", remedy="shorten it")
        connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        try:
            connection.request(method, target, content, headers)
            response = connection.getresponse()
            return self._read(response.status, response.read())
        except ConnectionRefusedError:
            raise not_running(self.place.state_dir) from None
        except (OSError, http.client.HTTPException) as error:
            raise NotAnswering(
                f"hive at {address.host}:{address.port} did not answer: {error or type(error).__name__}",
                remedy="`hive probe ready` says what it waits for",
            ) from error
        finally:
            connection.close()

    def _read(self, status: int, raw: bytes) -> Any:
        try:
            answer = json.loads(raw) if raw else None
        except ValueError:
            raise NotAnswering("what answers at this address is not hive", remedy="check --port") from None
        if status < 400:
            return answer
        problem = answer.get("error", {}) if isinstance(answer, dict) else {}
        message = str(problem.get("message", f"HTTP status {status}"))
        remedy = problem.get("remedy")
        if status == 401:
            address = self.place.address()
            raise Refused(
                f"the hive at {address.host}:{address.port} does not accept the token of state folder "
                f"{self.place.state_dir}",
                remedy="another hive listens there: give its --state, or the right --port",
                status=status,
                kind="unauthenticated",
            )
        if status == 503:
            raise NotAnswering(message, remedy=remedy)
        raise Refused(message, status=status, kind=str(problem.get("code", "http")), remedy=remedy)
