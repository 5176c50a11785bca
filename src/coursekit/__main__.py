"""Eleven commands: doctor, profile, rehearse, grade, explain, fits, plan, oom; for a room hand-in,
collect and seats.

python -m shardlab doctor [FOLDER]
    can this machine run the labs, and what to do if not
python -m shardlab profile SCRIPT [ARGUMENT ...]
    where the time of a script's training steps goes
python -m shardlab rehearse --gpus N [--gpu NAME] SCRIPT [ARGUMENT ...]
    what the script would need on GPUs that are not there: bytes, seconds, waits
python -m shardlab grade TOPIC [FILE]    or first --start [FOLDER]
    is right what you built for an assignment, and what is wrong if not
python -m shardlab explain QUANTITY [NAME=VALUE ...]
    what a number follows from: the tree of formulas, with units and sources
python -m shardlab fits --model config.json --gpu NAME --gpus N --sequence S
    does a training step fit, category by category, and what would fit instead
python -m shardlab plan --model config.json --gpu NAME --gpus N --batch B --sequence S
    the fastest layouts that fit, with their seconds and what limits them
python -m shardlab oom [FILE]
    what an out-of-memory message says, at which point of the step, and what helps
python -m shardlab hand-in SHARED --name NAME
    where your labs stand, and your predictions, for the instructor
python -m shardlab collect SHARED
    who is ready, who is where, and what a class predicted
python -m shardlab seats LEARNERS
    a share of this machine for each learner: GPUs, memory, cores, ports
"""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    from coursekit.exercises.grading_command import add_grade  # needs no torch, as the next
    from coursekit.formulas import command
    from coursekit.machine.profiling import add_profile
    from coursekit.machine.rehearsing import add_rehearse
    from coursekit.machine.room import add_collect, add_hand_in
    from coursekit.machine.seats import add_seats
    from coursekit.planner.command import add_fits, add_oom, add_plan

    parser = command.OneSentence(
        prog="python -m shardlab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor", help="try what the labs need, and say what to do about what is missing"
    )
    doctor.add_argument(
        "folder", nargs="?", type=Path, help="where the labs are; by default labs/ or here"
    )
    doctor.set_defaults(run=examine_machine)
    add_profile(commands)
    add_rehearse(commands)
    add_grade(commands)
    command.add_explain(commands)
    add_fits(commands)
    add_plan(commands)
    add_oom(commands)
    add_hand_in(commands)
    add_collect(commands)
    add_seats(commands)
    with suppress(AttributeError):  # a stream of a notebook, which prints all signs
        sys.stdout.reconfigure(errors="backslashreplace")
    asked = parser.parse_args(arguments)
    try:
        answer = asked.run(asked)
        sys.stdout.flush()
        return answer
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130
    except OSError as error:  # a file that cannot be read, written, or have such a name
        return command.say_refused(f"{str(error.filename)[:200]}: {error.strerror or error}.")
    except ValueError as refused:  # what was asked
        return command.say_refused(refused)


def examine_machine(asked) -> int:
    from coursekit.machine.doctor import examine  # here, so that --help needs no torch

    folder = asked.folder or (Path("labs") if Path("labs").is_dir() else Path())
    found = examine(folder)
    print(found.report(folder))
    return 0 if found.fit else 1


if __name__ == "__main__":
    sys.exit(main())
