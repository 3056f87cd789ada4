"""Run a broker and kill it when its owner dies, however the owner dies.

This is a separate script, started with ``python -I -S`` and without imports from this program, so it starts in 20 ms.
It starts the given command, prints the command's process id, and checks ten times a second whether the owner is still
its parent. On Linux and macOS a process gets a new parent when its parent dies, whatever killed the parent and whatever
threads and forked children the parent had. The alternatives are unreliable: a forked child may hold a pipe open, and
Linux's parent-death signal is sent when the parent *thread* dies.

Usage: ``watchdog.py OWNER_PID LOG_FILE REMOVE_DIR COMMAND...`` (``REMOVE_DIR`` may be empty).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

LOOK_EVERY_S = 0.1


def main(arguments: list[str]) -> int:
    """Run the command until it ends or the owner has died; return its exit code, or 0 if the owner died."""
    owner, log_file, remove_dir, command = int(arguments[0]), arguments[1], arguments[2], arguments[3:]
    with open(log_file, "ab") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    print(child.pid, flush=True)
    while child.poll() is None:
        if os.getppid() != owner:
            # No clean stop is needed: the owner is gone, and the data must survive a kill anyway.
            child.kill()
            child.wait()
            if remove_dir:
                shutil.rmtree(remove_dir, ignore_errors=True)
            return 0
        time.sleep(LOOK_EVERY_S)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
