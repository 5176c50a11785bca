"""Speed and size of the built book and of the engines, and the races of every topic: the
measurements of `make bench`. It reports; no test depends on its numbers.

- ``exact``   the pages' JavaScript against Python, on 10,000 configurations
- ``load``    from the start of a navigation to the repaint after the first input, and the tasks
  that come later
- ``redraw``  one input on a slider, until everything that follows is drawn and said
- ``blocking``  for how long each page does not answer while it loads on a slow CPU
- ``weight``  what a page loads, in bytes, by kind
- ``python``  what a lab waits for: imports, and the formulas
- ``memory``  what the byte ledger costs, and how exact it is
- ``build``   seconds of ``make book``
- ``ranks``   how fast ranks start, and what watching them costs
- ``exposed``  exposed time on two rehearsed hosts, predicted over measured, for each technique
- ``virtual``  techniques beside PyTorch's on virtual GPUs, and how long such a step takes here
- ``random-models``   many more random models through every technique than the tests run

The other parts are in BENCHES of the topics' runs.py.
"""

import sys

# nbformat would compile 38 grammars of addresses: a second and a half, for what no lab has
sys.modules.setdefault("rfc3987_syntax", None)
