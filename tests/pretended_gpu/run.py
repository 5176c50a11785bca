"""Runs a command that sees pretended GPUs:

python tests/pretended_gpu/run.py 4 python -m coursekit.recordings.record recordings --quick
"""

import os
import sys

from pretended import environment

if __name__ == "__main__":
    gpus, command = int(sys.argv[1]), sys.argv[2:]
    os.execvpe(command[0], command, environment(gpus))
