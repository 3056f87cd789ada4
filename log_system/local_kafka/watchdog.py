"""Run a broker and end it with its owner, however the owner dies.

A script of its own, started with ``python -I -S`` so that it is there in 20 ms: it imports nothing of this program.
It starts the command given, prints its process id, and looks ten times a second whether the owner is still its parent.
A process whose parent died gets another parent, on Linux and on macOS, whatever killed it and whichever threads and
forked children it had; a pipe held open by a forked child, or Linux's signal on the death of the parent *thread*, would
be fooled by those.

Usage: ``_watchdog.py OWNER_PID LOG_FILE REMOVE_DIR COMMAND...`` (``REMOVE_DIR`` may be empty).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

LOOK_EVERY_S = 0.1


def main(arguments: list[str]) -> int:
    """Run the command until it ends or the owner is gone; return the command's exit code."""
    owner, log_file, remove_dir, command = int(arguments[0]), arguments[1], arguments[2], arguments[3:]
    with open(log_file, "ab") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    print(child.pid, flush=True)
    while child.poll() is None:
        if os.getppid() != owner:
            # Nobody is left who could want a clean stop, and the data must survive a kill anyway.
            child.kill()
            child.wait()
            if remove_dir:
                shutil.rmtree(remove_dir, ignore_errors=True)
            return 0
        time.sleep(LOOK_EVERY_S)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
