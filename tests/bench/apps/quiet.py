"""Workers without a log line per task, so that none is measured by its logging.

``LOGGING`` is a configuration for whoever takes one; as a script it runs streaq, whose command line always
logs each task.
"""

import importlib
import sys

LOGGING = {"version": 1, "disable_existing_loggers": False}

if __name__ == "__main__":
    importlib.import_module(sys.argv[1]).worker.run_sync()
