"""robots.txt, as RFC 9309 has it."""

from protego import Protego
from yarl import URL

from hive.ingest.connectors.port import SourceError
from hive.ingest.connectors.web_client import Busy, Failed, Loaded, WebClient

MAX_BYTES = 512 * 1024  # RFC 9309, 2.5: at least 500 KiB are to be parsed
MAX_DELAY_SECONDS = 10.0  # a Crawl-delay of hours would only block a slot


class Robots:
    """What a site allows this crawler."""

    def __init__(self, rules: Protego | None, user_agent: str) -> None:
        self._rules = rules
        self._agent = user_agent.partition("/")[0].strip()

    def allows(self, url: URL) -> bool:
        """Whether the page may be asked for."""
        return self._rules is None or self._rules.can_fetch(str(url), self._agent)

    @property
    def delay_seconds(self) -> float:
        """What the site asks for between two requests, within reason."""
        delay = self._rules.crawl_delay(self._agent) if self._rules is not None else None
        return min(MAX_DELAY_SECONDS, max(0.0, float(delay or 0)))


async def robots_of(site: URL, client: WebClient, user_agent: str) -> Robots:
    """Ask for the site's robots.txt. None there (any 4xx): all is allowed.

    Raises SourceError when it cannot be had (5xx, no answer), since then nothing is allowed for now.
    """
    place = site.with_path("/robots.txt").with_query(None)
    # Redirects are followed to wherever they lead: RFC 9309, 2.3.1.2.
    answer = await client.get(place, stay=False, truncate_at=MAX_BYTES)
    match answer:
        case Loaded():
            return Robots(Protego.parse(answer.data.decode("utf-8", errors="replace")), user_agent)
        case Failed() if 400 <= answer.status < 500 or answer.code in ("redirect_loop", "bad_redirect"):
            return Robots(None, user_agent)
        case Failed():
            raise SourceError(answer.code, answer.summary, transient=answer.transient)
        case Busy():
            if answer.status == 429:
                return Robots(None, user_agent)
            raise SourceError(
                "unavailable",
                f"{place} answered {answer.status}",
                transient=True,
                retry_after_seconds=answer.retry_after_seconds,
            )
        case _:
            return Robots(None, user_agent)
