"""How many messages a second one client hands over: one by one, and in bulk."""

from bench import Bench, Failed, report
from measures import Figure, Sheet
from systems import ALL


def publish(bench: Bench) -> list[Figure]:
    """Sending empty tasks from one client: each awaited alone, and the fastest way the system documents."""
    sheet = Sheet("publish")
    singles, bulk = (1_000, 5_000) if bench.quick else (3_000, 20_000)
    for number in range(bench.rounds):
        for system in ALL:
            try:
                if reason := bench.able(system):
                    raise Failed(reason)
                for metric, count, sending in (
                    ("single", singles, ("single", singles)),
                    ("bulk", bulk, ("fill", "empty", bulk)),
                ):
                    bench.fresh(system)
                    sent = bench.send(system, *sending)
                    sheet.add(system.name, metric, "messages/s", count / sent.seconds)
                    sheet.add(system.name, f"{metric}, processor", "µs/message", 1e6 * sent.processor / count)
            except Failed as error:
                sheet.add(system.name, "single", "messages/s", None, str(error))
            report(f"publish {number + 1}/{bench.rounds} {system.name}: {sheet.last(system.name)}")
    return sheet.figures()
