"""`python -m shardlab profile SCRIPT`: where the time of a training step of any script goes.

The script runs as it is, until enough of its steps are known. What is asked wrongly, and a script
that fails or does not train, gets one sentence.
"""

import argparse
import os
import runpy
import sys
import traceback
from pathlib import Path

from coursekit.sentences import first_sentence


def run_profile(asked: argparse.Namespace) -> int:
    if wrong := first_sentence("machine.md", "what profile cannot be asked", vars(asked)):
        raise ValueError(wrong)
    own = [word for word in asked.arguments if word.split("=")[0] == "--trace"]
    if own:
        said = f"{own[0]} goes to {asked.script}: options of profile are before the script."
        print(said, file=sys.stderr)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read once, when torch is imported
    from ranklab.measure.profile import NoStep, as_called, profiled_steps

    try:
        with (
            as_called(asked.script, asked.arguments),
            profiled_steps(peak=peak_rate(), stop=True) as found,
        ):
            run_script(asked.script)
    except NoStep as wrong:
        raise ValueError(wrong) from None
    print(found)
    if asked.trace:
        found.save_trace(asked.trace)
        print(f"{asked.trace}: open it at https://ui.perfetto.dev")
    return 0


def run_script(script: Path):
    """Raises ValueError with one sentence for a script that raises an error."""
    from ranklab.measure.profile import EnoughSteps  # it loads torch
    from ranklab.ranks.messages import text_of

    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as left:
        if left.code not in (None, 0):
            raise ValueError(f"{script} left with exit code {left.code}.") from None
    except EnoughSteps:
        raise
    except BaseException as error:  # the script's own may be one
        frames = traceback.extract_tb(error.__traceback__)  # the script's own innermost line
        lines = [0, *(one.lineno for one in frames if one.filename == str(script))]
        where = f"{script}:{getattr(error, 'lineno', 0) or lines[-1]}"
        raise ValueError(f"{where} raised {type(error).__name__}: {text_of(error)}") from error


def peak_rate() -> float | None:
    """Operations a second in 16 bits, of the GPU that is here."""
    import torch

    from coursekit.machine.capabilities import preset_of

    preset = preset_of(torch.device("cuda")) if torch.cuda.is_available() else None
    return preset and preset.quantities["flops_per_second"]
