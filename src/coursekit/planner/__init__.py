"""The planner: whether a model fits on GPUs, and which layout is the fastest that does.

    layout.py          a layout that is asked about, and the bytes of its fullest rank
    fits.py            these bytes as a ledger, with what was assumed
    nearest.py         the nearest layouts that fit
    search.py          all legal layouts, solved at once, and the fastest that fit
    plan.py            these, with what was assumed
    links.py           the links between the GPUs of a preset
    speeds.py          seconds of a step, at the speeds of published runs (runs_published.py)
    model_config.py    a model's sizes out of its config.json
    configurations.py  settings of other tools in the quantities of fits (_table.py, _text.py), and
                       the other way (_written.py)
    oom.py             PyTorch's out-of-memory message in plain words
    command.py         `python -m shardlab fits`, `plan` and `oom`

A tool over the formulas, which know nothing of it. It imports no torch.
"""
