"""Predictions and checks of labs: a number is predicted before it is shown, and the check of a
blank names the misconception.

Each topic has a module of exercises, each exercise with the wrong solutions that its check must
catch.

    labs           predictions.py       a number is predicted, locked, measured, compared
                   wrong_numbers.py     a topic's predictions.md: numbers that readers lock
                   slips.py             what a wrong prediction comes from
                   mistakes.py          mistakes.md as text, and the solutions of the labs
                   decisions.py         its decision lists: conditions, and their sentences
                   checker.py           check(): cases, and the misconception behind an answer
                   properties.py        how wrong answers differ, whatever was asked
                   hints.py             help in two steps
                   numbers.py           a reader's number, whoever made it
                   missing_names.py     a name of a cell that did not run: one sentence
                   going_on.py          a later cell runs what passed its check, nothing else
    safely         patience.py          a time limit for code that has no process of its own; that
                                        is machine/apart.py
                   thread_ranks.py      ranks as threads, which cannot hang
    assignments    assignments.py       a topic's assignment and its trials
                   grading.py           grades a file in which a reader built a technique
                   grading_command.py   `python -m shardlab grade`
                   grading_text.py      what is asked of the file's text before it runs
                   on_a_rank.py         the rank's side of grading
"""

from importlib import import_module

__all__ = ["Exercise", "Misconception", "Predictions", "Verdict", "check", "hint"]


def __getattr__(name):
    """Names for labs, loaded at their first use: a book is built from mistakes.py and slips.py
    without what a check needs."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"hint": "hints", "Predictions": "predictions"}.get(name, "checker")
    return getattr(import_module(f".{module}", __name__), name)
