"""Functions for children that import nothing else."""

from multiprocessing.connection import Connection


def speak(pipe: Connection) -> None:
    """Send one byte."""
    pipe.send_bytes(b"!")


def nothing(context: object) -> None:
    """A task."""
    del context
