"""What hive promises of its speed, as ratios within one run, and whether the figures keep it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from measures import Figure, value_of
from systems import PEERS

Number = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``value`` against ``limit``; ``met`` is None where something was not measured."""

    what: str
    limit: str
    value: str
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``value`` must be at least, or at most, ``limit``; ``unit`` stands behind the number."""

    what: str
    case: str
    value: Callable[[Sequence[Figure]], Number]
    limit: float
    at_least: bool = True
    unit: str = "×"

    def verdict(self, figures: Sequence[Figure]) -> Verdict:
        value = self.value(figures)
        met = None if value is None else value >= self.limit if self.at_least else value <= self.limit
        return Verdict(
            what=self.what,
            limit=f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}",
            value="not measured" if value is None else f"{value:.3g} {self.unit}",
            met=met,
        )


def best_peer(
    figures: Iterable[Figure], case: str, metric: str, *, largest: bool, store: str = ""
) -> tuple[str, float] | None:
    """The best peer's name and value."""
    found = [
        (figure.system, figure.value)
        for figure in figures
        if figure.case == case
        and figure.metric == metric
        and figure.value is not None
        and any(peer.name == figure.system and store in (peer.store, "") for peer in PEERS)
    ]
    if not found:
        return None
    return (max if largest else min)(found, key=lambda pair: pair[1])


def _to_peer(
    case: str, system: str, metric: str, *, largest: bool = True, store: str = ""
) -> Callable[[Sequence[Figure]], Number]:
    def ratio(figures: Sequence[Figure]) -> Number:
        own = value_of(figures, case, system, metric)
        peer = best_peer(figures, case, metric, largest=largest, store=store)
        return None if own is None or peer is None or not peer[1] else own / peer[1]

    return ratio


def _to_ceiling(system: str, server: str, metric: str) -> Callable[[Sequence[Figure]], Number]:
    def share(figures: Sequence[Figure]) -> Number:
        own = value_of(figures, "empty", system, "consume")
        top = value_of(figures, "ceiling", server, metric)
        return None if own is None or not top else 100 * own / top

    return share


def _plain(case: str, system: str, metric: str) -> Callable[[Sequence[Figure]], Number]:
    return lambda figures: value_of(figures, case, system, metric)


def _over(
    case: str, system: str, metric: str, other: str, other_metric: str = ""
) -> Callable[[Sequence[Figure]], Number]:
    def ratio(figures: Sequence[Figure]) -> Number:
        own = value_of(figures, case, system, metric)
        against = value_of(figures, case, other, other_metric or metric)
        return None if own is None or not against else own / against

    return ratio


def _to_bound(system: str, metric: str) -> Callable[[Sequence[Figure]], Number]:
    """A wait as a share of its bound; the bound stands beside it."""
    return _over("neighbour", system, metric, system, f"{metric}, bound")


TARGETS = (
    Target(
        what="stream, empty tasks, to the fastest peer",
        case="empty",
        value=_to_peer("empty", "hive stream", "consume"),
        limit=6,
    ),
    Target(
        what="stream, empty tasks, of the framework-free ceiling",
        case="ceiling",
        value=_to_ceiling("hive stream", "valkey", "consume, batches of 100"),
        limit=30,
        unit="%",
    ),
    Target(
        what="ledger, empty jobs, to procrastinate",
        case="empty",
        value=_to_peer("empty", "hive ledger", "consume", store="postgres"),
        limit=60,
    ),
    Target(
        what="ledger, empty jobs, of the framework-free ceiling",
        case="ceiling",
        value=_to_ceiling("hive ledger", "postgres", "consume, batches of 200"),
        limit=25,
        unit="%",
    ),
    Target(
        what="stream, bulk publish, to the fastest peer on Redis",
        case="publish",
        value=_to_peer("publish", "hive stream", "bulk", store="redis"),
        limit=5,
    ),
    Target(
        what="ledger, bulk publish, to procrastinate",
        case="publish",
        value=_to_peer("publish", "hive ledger", "bulk", store="postgres"),
        limit=5,
    ),
    *(
        Target(
            what=f"{system.removeprefix('hive ')}, pick-up {quantile}, to {against}",
            case="pickup",
            value=_to_peer("pickup", system, quantile, largest=False, store=store),
            limit=0.7,
            at_least=False,
        )
        for system, store, against in (
            ("hive stream", "", "the best peer"),
            ("hive ledger", "postgres", "procrastinate"),
        )
        for quantile in ("p50", "p99")
    ),
    *(
        target
        for system in ("hive stream", "hive ledger")
        for target in (
            *(
                Target(
                    what=f"{system.removeprefix('hive ')}, a single job beside {who}, of its bound",
                    case="neighbour",
                    value=_to_bound(system, metric),
                    limit=1,
                    at_least=False,
                )
                for metric, who in (
                    ("wait beside 1 busy", "1 busy tenant"),
                    ("wait beside 100 busy", "100 busy tenants"),
                )
            ),
            Target(
                what=f"{system.removeprefix('hive ')}, slots that a lone busy tenant uses",
                case="neighbour",
                value=_plain("neighbour", system, "slots used alone"),
                limit=95,
                unit="%",
            ),
        )
    ),
    Target(
        what="idle memory, to the herd of celery workers",
        case="memory",
        value=_over("memory", "hive", "proportional", "celery herd"),
        limit=0.25,
        at_least=False,
    ),
    Target(
        what="start to consuming",
        case="start",
        value=_plain("start", "hive run", "first task runs"),
        limit=1.5,
        at_least=False,
        unit="s",
    ),
    Target(
        what="start to consuming, to one celery worker",
        case="start",
        value=_over("start", "hive run", "first task runs", "celery"),
        limit=1,
        at_least=False,
    ),
    *(
        Target(
            what=f"{system.removeprefix('hive ')}, killed: {metric}",
            case="kill",
            value=_plain("kill", system, metric),
            limit=0,
            at_least=False,
            unit="jobs",
        )
        for system, metric in (
            ("hive stream", "lost"),
            ("hive ledger", "lost"),
            ("hive ledger", "doubled"),
        )
    ),
    *(
        Target(
            what=f"{system.removeprefix('hive ')}, killed: last active job again, after consuming starts",
            case="kill",
            value=_plain("kill", system, "active again"),
            limit=2,
            at_least=False,
            unit="s",
        )
        for system in ("hive stream", "hive ledger")
    ),
    Target(
        what="fetch child, start",
        case="child",
        value=_plain("child", "hive zygote", "p50"),
        limit=6,
        at_least=False,
        unit="ms",
    ),
    Target(
        what="beat, 10,000 tenants × 14 schedules, 1 % at work: share of one core",
        case="beat",
        value=_plain("beat", "hive, 1 % at work", "processor"),
        limit=10,
        at_least=False,
        unit="%",
    ),
    Target(
        what="beat: latest tick",
        case="beat",
        value=_plain("beat", "hive, all at work", "latest tick"),
        limit=1,
        at_least=False,
        unit="s",
    ),
    Target(
        what="beat: rebuild",
        case="beat",
        value=_plain("beat", "hive, all at work", "rebuild"),
        limit=300,
        at_least=False,
        unit="ms",
    ),
)


def verdicts(figures: Sequence[Figure]) -> list[Verdict]:
    """The verdicts of all targets whose case was measured."""
    measured = {figure.case for figure in figures}
    return [target.verdict(figures) for target in TARGETS if target.case in measured]
