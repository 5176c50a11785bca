"""What `make bench` measures: speed and size of the built book. It reports; no test depends on it.

- ``exact``   the pages' JavaScript against Python, on 10,000 configurations
- ``load``    from the start of a navigation to the repaint after the first input, and the tasks
  that come later
- ``redraw``  one input on a slider, until everything that follows is drawn and said
- ``weight``  what a page loads, in bytes, by kind
- ``python``  what a lab waits for: imports, and the formulas
- ``build``   seconds of ``make book``
"""
