"""Counts the bytes that a run holds and sends, and its seconds. Import the parts: `from
ranklab.measure.ledger import Ledger`.

    bytes         ledger.py         every live byte of a step, by category, at every point
                  weigh.py          the bytes of a module, and what its forward pass keeps
                  fake_ranks.py     one rank of a thousand, without the others and without memory
    messages      communication.py  every message of this rank, with its bytes and seconds
                  links.py          latency and bandwidth between ranks
    seconds       clock.py          the duration of some work: the median, by the GPU's clock there
                  profile.py        the budget of a step of any training loop
                  waits.py          the lines at which the host waits for the GPU
                  chrome_trace.py   PyTorch's traces made small (slim_trace.py)
"""
