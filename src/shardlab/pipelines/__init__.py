"""Pipelines: a model cut by depth, whose ranks run a schedule.

    layers = [model.embedding, *model.blocks, model.head]
    plan = plan_pipeline(layers, one_f_one_b(4, 8), tokens)    # partition.py
    pipeline = Pipeline(layers, plan, next_token_loss)         # hardened/
    losses = pipeline.step(tokens, targets)

Without torch, so that pages are built from the lists that ranks run:

    schedules.py        which rank does what, in which order, as data
    schedule_checks.py  shows such lists, and checks what can be seen without running them
    simulation.py       would a list run, how long does it take, and what does each rank hold

With torch:

    core.py             the idea on a page: keeps a rank's layers and runs its list
    partition.py        which layers a stage has, and what cannot be a pipeline

and in hardened/:

    pipeline.py         keeps a rank's layers, runs its list, and posts receives ahead
    step_checks.py      what it refuses
    tied.py             weights that ranks share
    split_backward.py   a backward in two halves, for schedules that put weight gradients off

This file imports nothing: import names from the files.

Huang et al. 2019 (GPipe); Narayanan et al. 2021 (arXiv 2104.04473); Qi et al. 2024 (arXiv
2401.10241).
"""
