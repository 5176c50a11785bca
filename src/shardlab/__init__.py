"""The techniques of the book "Split, Shard, Recompute", on real GPUs.

    technique                core to read                      door to call
    collectives              collectives, collective_plans     collectives.all_reduce(x)
    data parallelism         data_parallel.core                data_parallel.DistributedDataParallel
    ZeRO                     zero.core, zero.core_stage3       zero.shard(model, AdamW, stage=2)
    tensor parallelism       tensor_parallel.core,             tensor_parallel.apply_tensor_parallel
                             tensor_parallel.core_sequence
    pipelines                pipelines.schedules,              pipelines.Pipeline
                             pipelines.core
    mixed precision          mixed_precision.core              mixed_precision.MasterWeights
    activation checkpointing recompute.core                    recompute.checkpoint
    data loading             data_loading.core,                data_loading.core.TokenLoader
                             data_loading.core_packing
    kernels                  kernels.tiles, kernels.attention  kernels.attention.attention,
                             and each other file of kernels    kernels.moved_bytes.moved_bytes
    context parallelism      context_parallel.core,            context_parallel.context_parallel
                             context_parallel.core_ring
    mixture of experts       experts.core,                     experts.hardened.apply.
                             experts.core_parallel             apply_expert_parallel
    sending less             compression.core, core_bits,      compression.Compressed, OneBitAdam,
                             core_optimizers, core_zero        DiLoCo, DeMo, zero_plus_plus
    sharded checkpoints      saving                            saving.checkpoint

A core is the whole technique in at most 200 lines. A door gives the hardened class, which takes
models that the core does not, and lies in the folder `hardened/` beside it. Around them:

    gpt, rms_norm, text      the plain model, which knows no parallelism, and its text
    mesh                     the grid of ranks and its groups
    gradient_clipping        clipping by the norm of all shards
    common/                  what techniques share; torch_internals has PyTorch's private names

Importing the package loads no torch. Import the module you need: `from shardlab.gpt import GPT`.
"""

__version__ = "0.1.0"
