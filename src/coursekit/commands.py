"""The commands of `python -m shardlab`, as data/commands.md has them.

A heading there has a command and the function that runs it; lines below it are what the help says,
and arguments: `name METAVAR | kind | help`. A kind is text, a whole number or a number, perhaps
`from` one `to` another, a path, a flag, the function that reads the argument; after commas follows
what else holds: `required`, `optional`, `several`, `again`, its `else`, its value `alone`, the name
by which the function finds it (`called`). A heading without a function has lines that several
commands share.
"""

import argparse
import re
from importlib import import_module
from pathlib import Path

from coursekit.formulas.presets import GPUS, KERNELS, PRESETS, RECIPES
from coursekit.machine.rehearsing import WARNING
from coursekit.planner.configurations_table import tools
from coursekit.planner.search import RULES
from coursekit.planner.speeds import SPEEDS
from coursekit.sentences import data_text

ARGUMENT_KINDS = dict(text=str, whole=int, number=float, path=Path)
PLAIN_WORDS = dict(
    flag=dict(action="store_true"),
    yes=dict(action=argparse.BooleanOptionalAction),  # or no
    rest=dict(nargs=argparse.REMAINDER),
    required=dict(required=True),
    optional=dict(nargs="?"),
    several=dict(nargs="+"),
    again=dict(action="append"),
)
LISTED_NAMES = dict(gpus=GPUS, recipes=RECIPES, kernels=KERNELS, speeds=SPEEDS, presets=PRESETS)


class OneSentence(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without a page of usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message:.500}; --help says what it takes.\n")


def parser_of_commands() -> OneSentence:
    """Its answers have `run`, the dotted name of the command's function, and `parser`."""
    head, *parts = data_text("commands.md").split("\n## ")
    parser = OneSentence(
        prog="python -m shardlab",
        description=head.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    names = _names()
    for part in parts:
        title, _, text = part.replace("\n  ", " ").partition("\n\n")
        name, _, run = title.partition(": ")
        text = text.format_map(names)
        if not run:
            names[name] = text
            continue
        facts = dict(re.findall(r"(?m)^(help|description|epilog|usage): (.+)", text))
        command = commands.add_parser(name, **facts)
        command.set_defaults(run=run, parser=command)
        for line in re.findall(r"(?m)^- (.+)", text):
            _add_argument(command, *re.split(r" \| ?", line))
    return parser


def _names() -> dict[str, str]:
    """Names in braces of the table, and their text."""
    found = {name: ", ".join(known) for name, known in LISTED_NAMES.items()}
    found["tools"] = ", ".join(tool.name for tool in tools().values())
    found["written"] = " ".join(name for name in tools() if name != "trainer")
    rules = ((name.replace("_", "-"), rule) for name, rule in RULES.items())
    found["rules"] = "\n".join(f"- --{name} | whole | fix it: {rule}" for name, rule in rules)
    return found | dict(warning=WARNING)


def _add_argument(command: argparse.ArgumentParser, names: str, kind: str, help: str):
    name, _, metavar = names.partition(" ")
    options = dict(metavar=metavar) if metavar else {}
    for word, *value in map(str.split, kind.split(", ")):
        match word:
            case _ if word in PLAIN_WORDS:
                options |= PLAIN_WORDS[word]
            case "one":  # of
                options["choices"] = value[1:]
            case "alone":
                options |= dict(nargs="?", const=options["type"](*value))
            case "else":
                options["default"] = " ".join(value)
            case "called":
                options["dest"] = value[0]
            case _:
                options["type"] = _reader(word, value)
    command.add_argument(name, help=help or None, **options)


def _reader(kind: str, limits: list[str]):
    """A function of an argument's text."""
    if kind not in ARGUMENT_KINDS:
        module, _, name = kind.rpartition(".")
        return lambda text: getattr(import_module(module), name)(text)
    if not limits:
        return ARGUMENT_KINDS[kind]
    least, most = map(ARGUMENT_KINDS[kind], limits[1::2])

    def read(text):
        if not least <= (value := ARGUMENT_KINDS[kind](text)) <= most:
            said = f"{text:.40} is not from {least:g} to {most:,.0f}"
            raise argparse.ArgumentTypeError(said)
        return value

    read.__name__ = ARGUMENT_KINDS[kind].__name__  # argparse names it: "invalid int value"
    return read
