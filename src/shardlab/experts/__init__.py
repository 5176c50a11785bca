"""Mixture of experts: many MLPs in a layer, of which each token goes through a few.

core.py            the layer in one process: router, dispatch, experts, combine; what balances
                   loads
core_parallel.py   experts divided among ranks: rows travel by all-to-all
hardened/apply.py  the same in place in a model, beside other techniques: apply_expert_parallel()
"""
