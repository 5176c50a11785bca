"""A cell that needs a name of a cell that did not run, or a package whose import was interrupted:
one sentence instead of a traceback."""

import copyreg
import sys
from itertools import accumulate


class ShownAlone(Exception):
    """IPython shows the sentence alone: the traceback is of no use to a reader of a lab."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


SET_UP = "predictions"  # a name that the set-up cell of every lab makes
# what it registers it cannot register again
IMPORTED_ONCE = ("torch", "numpy")


def explain_missing_names() -> None:
    """Explain missing names: from now on this notebook says of a NameError in a cell what to run
    first, and of an interrupted import that the kernel must start anew. Whoever has told IPython to
    handle exceptions in another way keeps that. A solution that calls exit() ends its check alone.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((Exception, KeyboardInterrupt), _explain)
        # a check sends it to its process: here IPython's own would end the kernel
        copyreg.pickle(type(shell.exiter), lambda _: (getattr, (sys, "exit")))


def _explain(shell, kind, error, trace, tb_offset=None):
    torch = sys.modules.get("torch")
    if kind is KeyboardInterrupt and hasattr(torch, "set_grad_enabled"):
        torch.set_grad_enabled(True)  # as a stop in no_grad()'s own code keeps gradients off
    sentence = _half_imported() or _not_there_yet(shell, kind, error, trace)
    if sentence:
        shell._showtraceback(kind, error, [f"{kind.__name__}: {sentence}"])
    else:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset, running_compiled_code=True)


def _half_imported() -> str:
    """Drops what an interrupted import has left, so that it can be repeated: Python keeps the parts
    of a package that it forgets, and the package made anew has none of them as its attributes.
    Modules that came after them may have written into them, as topics do into the registry."""
    said, broken = "", set()
    for part in list(sys.modules):
        package = part.partition(".")[0]
        if _cut_off(part) and package in IMPORTED_ONCE:
            # a second import may hang, hears no stop, and lacks what the first has registered
            sys.modules.update(dict.fromkeys(_forgotten(part)))
            said = (
                f"the import of {package} was interrupted, and cannot be repeated: restart the"
                " kernel, and run the lab from its first cell."
            )
        elif package in broken or _cut_off(part):
            broken.add(package)
            del sys.modules[part]
    return said


def _cut_off(part: str) -> bool:
    """Whether Python has imported it and has no package around it any more."""
    return bool(getattr(sys.modules[part], "__spec__", None) and _forgotten(part))


def _forgotten(part: str) -> list[str]:
    """The packages around it that Python has not, or not any more."""
    packages = accumulate(part.split(".")[:-1], "{}.{}".format)
    return [package for package in packages if sys.modules.get(package) is None]


def _not_there_yet(shell, kind, error, trace) -> str:
    frame = trace
    while frame.tb_next is not None:
        frame = frame.tb_next
    in_a_cell = frame.tb_frame.f_globals is shell.user_ns
    if not (in_a_cell and kind is NameError and error.name):
        return ""
    first = "" if SET_UP in shell.user_ns else "the first cells of the lab, and then "
    return (
        f"{error.name} is not there yet: run {first}the cells of this section from its heading"
        " down, or mend the name if you have written it."
    )
