"""The entry point. It only dispatches: what must be fast does not pay for what it does not use.

`hive probe` runs every few seconds inside every container: it uses the standard library alone and must answer
within 100 ms, so neither click nor hive is imported on its way. `hive run` lives for months, and need not
hold click all the while.
"""

import sys


def main() -> None:
    """Run the command line and exit with its code (0 well, 1 failed, 2 configuration, 3 stores, 4 grace)."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["probe"]:
        from probes.command import main as probe

        sys.exit(probe(arguments[1:]))
    from supervisor.reaper import become_init_if_first

    become_init_if_first()
    if arguments[:1] == ["run"]:
        from supervisor import start

        options = start.plain(arguments[1:])
        if options is not None:
            sys.exit(start.run(options))
    from supervisor.cli.application import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
