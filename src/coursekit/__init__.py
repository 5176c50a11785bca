"""The course beside the techniques of shardlab:

    topics/      one folder for each chapter: formulas, explorer, steps, exercises, pictures, runs
    formulas/    bytes and seconds, from which pages, labs and commands take their numbers
    planner/     whether a model fits, and the fastest layout: a tool over the formulas
    show/        explorers, figures and tables
    exercises/   checks, predictions, and the grading of a whole technique
    recordings/  `make gpu`, races, and the files in measured/
    machine/     the abilities of this machine, and running out of its memory without harm
    sentences.py refusals, advice and assumptions of data/*.md, each with its condition
    commands.py  `python -m shardlab`, out of data/commands.md

Importing the package is light, as importing shardlab is.
"""
