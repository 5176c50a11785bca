"""`python -m shardlab COMMAND`: data/commands.md has the commands. A wrong question is a ValueError
of its function: one sentence, and exit code 2.
"""

import os
import sys
from contextlib import suppress
from importlib import import_module

from coursekit.commands import parser_of_commands


def main(arguments: list[str] | None = None) -> int:
    with suppress(AttributeError):  # a stream of a notebook, which prints all signs
        sys.stdout.reconfigure(errors="backslashreplace")
    asked = parser_of_commands().parse_args(arguments)
    module, _, function = asked.run.rpartition(".")
    try:
        answer = getattr(import_module(module), function)(asked)
        sys.stdout.flush()
        return answer
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130
    except OSError as error:  # a file that cannot be read, written, or have such a name
        print(f"{str(error.filename)[:200]}: {error.strerror or error}.", file=sys.stderr)
        return 2
    except ValueError as refused:  # what was asked
        print(f"{refused!s:.3000}", file=sys.stderr)  # it may hold what was typed
        return 2


if __name__ == "__main__":
    sys.exit(main())
