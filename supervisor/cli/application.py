"""The command line as a whole: its commands, and the place where failures become a line and an exit code."""

import sys

import click

from supervisor.cli.attempts import attempts
from supervisor.cli.connectors import connector
from supervisor.cli.dead import dead
from supervisor.cli.failure import CONFIGURATION, CommandFailed
from supervisor.cli.jobs import enqueue, jobs
from supervisor.cli.overview import drain, pools, queues, services
from supervisor.cli.plain_text import clean
from supervisor.cli.running import check, model_server, probe, run_hive
from supervisor.cli.search import search
from supervisor.cli.stores import backup, migrate
from supervisor.cli.tenants import tenant

SECTIONS = (
    ("Run", ("run", "check", "migrate", "backup", "model-server", "drain")),
    ("Sources and answers", ("connector", "attempts", "search", "tenant")),
    ("Look inside", ("queues", "jobs", "dead", "pools", "services", "enqueue", "probe")),
)


class Commands(click.Group):
    """The commands in the order in which one meets them, rather than by alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [name for _, names in SECTIONS for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS:
            rows = [
                (name, command.get_short_help_str(90))
                for name in names
                if (command := self.get_command(ctx, name)) is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="hive-supervisor", message="hive %(version)s")
def hive() -> None:
    """The background work of a knowledge product: hive fetches sources, indexes them, answers searches.

    Start one with `hive run`, then talk to it from another terminal:

    \b
      hive connector add files --name docs --path ./docs
      hive attempts
      hive search "graceful shutdown"

    Every command that prints a table prints JSON with --json. With two hives on one machine, --state (or
    HIVE_STATE_DIR) says which one is meant.
    """


for command in (run_hive, check, migrate, backup, model_server, drain, connector, attempts, search):
    hive.add_command(command)
for command in (tenant, queues, jobs, dead, pools, services, enqueue, probe):
    hive.add_command(command)


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code. Failures become one line on standard error."""
    try:
        result = hive.main(args=arguments, prog_name="hive", standalone_mode=False)
    except CommandFailed as failure:
        click.echo(clean(failure.line()), err=True)
        return failure.code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except UnicodeEncodeError:
        # Bytes that are no UTF-8 reach us as halves of surrogate pairs: fit for a path, for nothing else.
        if not any("\ud800" <= character <= "\udfff" for text in arguments for character in text):
            raise
        click.echo("error: the command line holds bytes that are not UTF-8", err=True)
        return CONFIGURATION
    except BrokenPipeError:
        # `hive jobs | head`: the reader has what it wanted; what is still buffered must not be flushed.
        sys.stdout = None  # pyright: ignore[reportAttributeAccessIssue]
        return 0
    return result if isinstance(result, int) else 0
