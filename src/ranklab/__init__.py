"""The bench on which techniques run and are weighed:

    ranks/    starts ranks from a notebook, a test or torchrun, and names the guilty one when a run
              hangs or dies
    measure/  bytes of a step, moment by moment; messages; seconds
    virtual/  GPUs that are not there, in virtual time
    rehearse/ a script that runs on one of them

torch_internals.py has the private names of PyTorch that these use and no technique does.

It imports torch, itself and shardlab.common; no technique imports it. Importing the package is
light, as importing shardlab is.
"""
