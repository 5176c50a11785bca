"""`python -m shardlab doctor [FOLDER]`: can this machine run the labs, and what to do if not."""

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m shardlab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor", help="try what the labs need, and say what to do about what is missing"
    )
    doctor.add_argument(
        "folder", nargs="?", type=Path, help="where the labs are; by default labs/ or here"
    )
    asked = parser.parse_args()

    from shardlab.measure.doctor import examine  # here, so that --help needs no torch

    report, fit = examine(asked.folder or (Path("labs") if Path("labs").is_dir() else Path()))
    print(report)
    return 0 if fit else 1


if __name__ == "__main__":
    sys.exit(main())
