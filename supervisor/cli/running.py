"""`hive run`, `hive check`, and the two programs of their own: `hive model-server` and `hive probe`."""

import os
import sys
from pathlib import Path

import click

from supervisor.cli.failure import CONFIGURATION, CommandFailed, hive_errors
from supervisor.cli.options import as_json, placed, placed_to_run
from supervisor.cli.output import note, print_json, say
from supervisor.cli.place import Place


@click.command("run")
@click.option("--demo", is_flag=True, help="Add hive's own documentation as a first source.")
@placed_to_run
def run_hive(place: Place, demo: bool) -> int:
    """Run hive in the foreground until SIGTERM or Ctrl-C.

    Without addresses of a Postgres and a Redis it starts its own under the state folder. The first SIGTERM
    drains: what can finish within the grace time does, the rest is handed back; a second one ends it at once.

    \b
    Exit codes: 0 clean, 1 a service failed for good, 2 configuration, 3 the stores stayed away,
                4 the grace time was exceeded.

    \b
    Examples:
      hive run --demo
      hive run --state /var/lib/hive --port 9000
      HIVE_POSTGRES__DSN=postgresql://… HIVE_REDIS__URL=redis://… hive run --config hive.toml
    """
    from supervisor.start import serve

    return serve(place, demo=demo)


@click.command()
@as_json
@placed
def check(place: Place, as_json: bool) -> int:
    """Check the configuration and the registered tasks without starting anything.

    Every queue needs a pool, every task a queue that is carried, every schedule a task. All problems are
    listed at once; with any, the exit code is 2.

    \b
    Example:
      hive check --config hive.toml
    """
    from hive.config_file import load
    from hive.tasks import registry
    from supervisor.validation import problems, register_tasks

    with hive_errors():
        settings = load(place.config, overrides=place.overrides())
        register_tasks(settings)
    found = problems(settings, registry)
    tasks = sorted(registry, key=lambda task: (task.options.queue, task.name))
    owners = {queue: name for name, pool in settings.pools.items() for queue in (*pool.ledger, *pool.stream)}
    if as_json:
        print_json(
            {
                "ok": not found,
                "problems": list(found),
                "tasks": [
                    {"task": task.name, "queue": task.options.queue, "pool": owners.get(task.options.queue)}
                    for task in tasks
                ],
                "schedules": {name: seconds for name, seconds in settings.schedules.items() if seconds > 0},
            }
        )
        return CONFIGURATION if found else 0
    say(f"settings  {place.config or 'defaults and environment'}")
    say(f"state     {settings.process.state_dir}")
    say(f"pools     {', '.join(f'{name} ({pool.slots})' for name, pool in settings.pools.items())}")
    say("tasks")
    for task in tasks:
        say(f"  {task.name:<32} queue {task.options.queue}, pool {owners.get(task.options.queue, 'none')}")
    say("schedules")
    for name, seconds in settings.schedules.items():
        say(f"  {name:<32} " + (f"every {seconds:g} s" if seconds > 0 else "off"))
    for problem in found:
        note(f"error: {problem}")
    if not found:
        say("all well")
    return CONFIGURATION if found else 0


@click.command("model-server", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def model_server(arguments: tuple[str, ...]) -> None:
    """Serve embeddings over HTTP: a process of its own that imports nothing of hive's.

    OpenAI-compatible (/v1/embeddings). `hive run` starts one by itself unless HIVE_EMBEDDING__URL names
    another; its own options are listed by `hive model-server --help`.

    \b
    Example:
      hive model-server --port 8421
    """
    script = Path(__file__).resolve().parent.parent / "model_server.py"
    if not script.is_file():
        raise CommandFailed(f"{script.name} is missing from this installation", remedy="install hive anew")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(script), "--standalone", *arguments])


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def probe(arguments: tuple[str, ...]) -> int:
    """Ask whether hive is live or ready, for container health checks: `hive probe live|ready [--service S]`.

    Reads files under the state folder and answers within 100 ms by its exit code.

    \b
    Example:
      hive probe ready --state /var/lib/hive
    """
    from probes.command import main as answer  # `hive probe` itself is dispatched before click is imported

    return answer(list(arguments))
