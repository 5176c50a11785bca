"""The messages from a world to a rank, the rank's answers, and the outcomes."""

import io
import linecache
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import CodeType, ModuleType
from typing import NamedTuple

import cloudpickle

Frame = tuple[str, int, str]  # file, line, function


# --- to a rank: work, in the order sent -----------------------------------------------------------


class Call(NamedTuple):
    """Call a function. `pickled` holds (function, args, kwargs), the functions of a notebook by
    value. `as_json`: its result comes back as JSON."""

    pickled: bytes
    as_json: bool = False


class Cell(NamedTuple):
    """Run a notebook cell in the rank's own `__main__`."""

    source: str
    name: str


class Regroup(NamedTuple):
    """Make the process group anew, after it broke."""

    generation: int


class Quit(NamedTuple):
    """End."""


# --- to a rank: at once, also while it works ------------------------------------------------------


class Stop(NamedTuple):
    """Report your place in the code, cut your connections so that no rank waits for you, and stop
    your work."""


# --- from a rank: how a piece of work ended -------------------------------------------------------


class Returned(NamedTuple):
    packed: bytes  # the result: a pickle, or JSON
    ungrouped: bool = False  # the work has ended the process group, or made another


class Raised(NamedTuple):
    error: str
    message: str
    frames: tuple[Frame, ...]
    seconds: float  # the time, on the clock that all processes of a machine share
    echo: bool  # the error of a collective that another rank has left
    stopped: bool  # it was told to stop
    cause: str = ""  # "KeyError: 'x'", if another error led to this one


class Refused(NamedTuple):
    """This machine cannot provide the request: one sentence."""

    sentence: str


class Died(NamedTuple):
    """Noticed by the parent: the process is gone."""

    how: str
    seconds: float


class Seen(NamedTuple):
    """The rank's place in the code when it was told to stop; its work has not ended yet."""

    frames: tuple[Frame, ...]


KINDS_OF_ANSWER = {kind.__name__: kind for kind in (Returned, Raised, Refused, Seen)}


class AnswerReader(pickle.Unpickler):
    """Reads an answer, which names no code but its own kind: a rank runs a reader's file, and must
    not run one here."""

    def find_class(self, module: str, name: str) -> type:
        if module == __name__ and name in KINDS_OF_ANSWER:
            return KINDS_OF_ANSWER[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not the answer of a rank")


# --- what a rank raises in itself, instead of a collective; the message goes on from "Rank 1"


class Disagreement(RuntimeError):
    """This rank's call differs from another rank's. The reader sees RanksDisagree, made from all
    posts."""


# --- functions of a notebook or a script ----------------------------------------------------------


def call_of(function, args: tuple, kwargs: dict) -> Call:
    try:
        with by_value(function):
            return Call(dumps((function, args, kwargs)))
    except Exception as error:
        raise TypeError(
            f"{function_name(function)} and what it needs cannot be sent to the ranks ({error}):"
            " make it on the rank."
        ) from None


def text_of(error: BaseException) -> str:
    """The error's text, a plain string. It comes from the reader's class, which may raise an error
    as well."""
    try:
        return str.__str__(str(error))
    except (Exception, SystemExit) as failed:
        return f"its text cannot be shown, as str() raised {type(failed).__name__}"


def function_name(function) -> str:
    return getattr(function, "__name__", type(function).__name__)


def dumps(content) -> bytes:
    """`content` for another process, with the functions of a notebook by value."""
    file = io.BytesIO()
    pickler(sys.modules.get("torch"))(file).dump(content)
    return file.getvalue()


@cache
def pickler(torch: ModuleType | None) -> type:
    """Cloudpickle, with four things that get lost: a function's file, which version 3.1.3 calls
    "<dynamic-code>"; tensors of types such as float8, which PyTorch saves but cannot load; the
    storage that several tensors share, which pickle sends once because it is one object; and
    modules of a class of their own, such as torch.distributed.config, which a function seems to
    need if it names `dist` and, anywhere, an attribute `config`.

    The class is made when it is needed: a reader's own cloudpickle.py may hide the package, and the
    start of the ranks says so."""
    own = {CodeType: reduced_code}
    if torch:
        own |= {torch.Tensor: reduced_tensor, torch.UntypedStorage: reduced_storage}
    table = Reducers(own, cloudpickle.Pickler.dispatch_table)
    return type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})


class Reducers(ChainMap):
    def __missing__(self, kind: type):
        if issubclass(kind, ModuleType):  # ModuleType itself is cloudpickle's
            return lambda module: (import_module, (module.__name__,))
        raise KeyError(kind)


def reduced_code(code: CodeType) -> tuple:
    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make_code, (make, parts, code.co_filename, cell_lines(code.co_filename))


def cell_lines(file: str) -> list[str] | None:
    """The lines of a notebook's cell, which no other process can read; None for a file."""
    entry = linecache.cache.get(file, ())
    return entry[2] if len(entry) == 4 and not os.path.exists(file) else None


def keep_lines(file: str, lines: list[str]):
    """Keep the lines of a cell, which no file has."""
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def make_code(make: Callable, parts: tuple, file: str, lines: list[str] | None) -> CodeType:
    if lines is not None:
        keep_lines(file, lines)
    return make(*parts).replace(co_filename=file)


def reduced_tensor(tensor) -> tuple:
    make, parts, *state = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    plain = type(parts[0]).__name__ in ("TypedStorage", "UntypedStorage") and not state
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return make, parts, *state
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return make_tensor, (tensor.untyped_storage(), tensor.dtype, place, tensor.requires_grad)


def reduced_storage(storage) -> tuple:
    torch = sys.modules["torch"]
    own_bytes = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return make_storage, (storage.device, own_bytes.cpu().numpy())


def make_storage(device, own_bytes):
    return sys.modules["torch"].tensor(own_bytes, device=device).untyped_storage()


def make_tensor(storage, dtype, place: tuple, requires_grad: bool):
    tensor = sys.modules["torch"].empty(0, dtype=dtype, device=storage.device)
    return tensor.set_(storage, *place).requires_grad_(requires_grad)


@contextmanager
def by_value(function) -> Iterator[None]:
    """Ranks cannot import a script that `runpy` runs: its functions are sent by value, like a
    notebook's."""
    module = sys.modules.get(getattr(function, "__module__", None))
    by_name = module is None or module.__name__ == "__main__" or module.__spec__ is not None
    if by_name or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
