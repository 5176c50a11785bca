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
                   properties.py        how wrong numbers differ, whatever was asked
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
