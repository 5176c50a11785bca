"""A GPT's training step in less time on one GPU: the parameters, the loss and the gradients of
gpt.py, computed in another order.

    model = GPT(config).to("cuda", torch.bfloat16)
    compile_blocks(model)                                                   # step 3
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)
    of_chunk = torch.compile(loss_of_chunk)                                 # once
    loss = chunked_loss(model, tokens, targets, of_chunk=of_chunk)          # steps 1 and 2
    loss.backward()                                                         # as of any loss
    optimizer.step()
    optimizer.zero_grad()

The model is gpt.py's own, so that a checkpoint of one loads into the other. What is slow in the
plain step, and what each function does about it:

    next_token_loss(model(tokens), targets)     gpt.py
    padded_loss(model, tokens, targets)         1  tensor cores want rows of 16 bytes, and the
                                                   50,257 of a vocabulary are odd: the head
                                                   multiplies a copy of 50,304 rows
    chunked_loss(model, tokens, targets)        2  [B * S, V] in fp32 is 3.3 GB at 16,384 tokens,
                                                   several times: scores of a chunk of tokens live
                                                   until their gradient is known
    compile_blocks(model)                       3  norm, GELU, residual: a kernel for each reads
                                                   and writes all; a compiled block has few
    compile_blocks(model, mode=...)             4  "reduce-overhead": CUDA graphs, a launch for
                                                   each block. The next step writes over results and
                                                   gradients of this one; it begins with
                                                   torch.compiler.cudagraph_mark_step_begin()

Nothing here waits for the GPU: to print a loss, call .item() every hundred steps.

Letters as in gpt.py; P is V rounded up to a multiple of 64, C the tokens of a chunk, T = B * S.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlab.common.backward import NoSecondGradient
from shardlab.gpt import GPT, PADDING, next_token_loss

PADDED_TO = 64  # the padded vocabulary is a multiple of it: 128 bytes in bf16, a cache line
CHUNK_TOKENS = 2048


def last_hidden(model: GPT, tokens: Tensor) -> Tensor:  # [B, S]
    """The model without the product with the head's weight."""
    x = model.embedding(tokens)  # [B, S, H]
    for block in model.blocks:
        x = block(x)  # [B, S, H]
    return model.head.norm(x)  # [B, S, H]


# --- 1: rows that tensor cores like ---------------------------------------------------------------


def padded_head(model: GPT) -> Tensor:
    """The head's weight with rows of zeros below it. The parameter stays as it is: the copy takes
    little time beside the product, and backward cuts the rows off again."""
    weight = model.head.scores.weight  # [V, H]
    return F.pad(weight, (0, 0, 0, -len(weight) % PADDED_TO))  # [P, H]


def padded_loss(
    model: GPT, tokens: Tensor, targets: Tensor, of_scores: Callable = next_token_loss
) -> Tensor:
    """next_token_loss of the model; no row of the padding is a token. `of_scores` is
    next_token_loss, or what torch.compile has made of it: few passes over the scores."""
    scores = last_hidden(model, tokens) @ padded_head(model).t()  # [B, S, P]
    return of_scores(scores[..., : model.config.vocabulary], targets)


# --- 2: scores of a chunk of tokens at a time -----------------------------------------------------


def loss_of_chunk(scores: Tensor, targets: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """The sum of the losses of scores [C, P] against targets [C], and its gradient [C, P]: the
    softmax, less 1 at the target. In fp32 at least, the gradient rounded to the scores' type.
    Written with comparisons where an index would do, so that a compiler can make it one pass."""
    exact = scores[:, :vocabulary].to(torch.promote_types(scores.dtype, torch.float32))
    logs = torch.log_softmax(exact, -1)  # [C, V]
    column = torch.arange(vocabulary, device=scores.device)
    at_target = (column == targets[:, None]).to(logs.dtype)
    counts = (targets != PADDING)[:, None]
    gradient = ((logs.exp() - at_target) * counts).to(scores.dtype)
    padding = scores.shape[1] - vocabulary
    return F.nll_loss(logs, targets, reduction="sum"), F.pad(gradient, (0, padding))


class ChunkedLoss(torch.autograd.Function):
    """Loss and gradients in one pass over the chunks: when backward begins, all that is left is to
    multiply by the gradient that comes from above. Until then gradients are those of a sum, not of
    a mean, which 16 bits might take for zero."""

    @staticmethod
    def forward(ctx, x, rows, targets, vocabulary, chunk_tokens, of_chunk):
        x_gradient = torch.empty_like(x)  # [T, H]
        wide = torch.promote_types(rows.dtype, torch.float32)
        rows_gradient = torch.zeros_like(rows, dtype=wide)  # [P, H]
        total = x.new_zeros((), dtype=wide)
        chunks = (tensor.split(chunk_tokens) for tensor in (x, targets, x_gradient))
        for part, target, part_gradient in zip(*chunks):
            loss, gradient = of_chunk(part @ rows.t(), target, vocabulary)  # [C, P]
            total += loss
            part_gradient.copy_(gradient @ rows)
            rows_gradient += gradient.t() @ part
        count = (targets != PADDING).sum()
        ctx.save_for_backward(x_gradient, rows_gradient, count)
        ctx.rows_type = rows.dtype
        return total / count

    @staticmethod
    def backward(ctx, above):
        if torch.is_grad_enabled():
            raise NoSecondGradient(
                "create_graph=True: chunked_loss keeps no scores for gradients of gradients; take"
                " padded_loss."
            )
        x_gradient, rows_gradient, count = ctx.saved_tensors
        scale = above / count.clamp(min=1)  # without a target that counts, all are zero
        return x_gradient * scale, (rows_gradient * scale).to(ctx.rows_type), *[None] * 4


def chunked_loss(
    model: GPT,
    tokens: Tensor,
    targets: Tensor,
    chunk_tokens: int = CHUNK_TOKENS,
    of_chunk: Callable = loss_of_chunk,
) -> Tensor:
    """next_token_loss of the model, for training: gradients are computed even if nobody asks.
    `of_chunk` is loss_of_chunk, or what torch.compile has made of it."""
    x = last_hidden(model, tokens).flatten(0, 1)  # [T, H]
    rows, vocabulary = padded_head(model), model.config.vocabulary
    return ChunkedLoss.apply(x, rows, targets.flatten(), vocabulary, chunk_tokens, of_chunk)


# --- 3: few kernels -------------------------------------------------------------------------------


def compile_blocks(model: GPT, **options):
    """Compile each block in place, under the names it has; options are torch.compile's. Blocks are
    alike, so that the compiler works once, at the first step; on the whole model it would work as
    many times longer as there are blocks."""
    for block in model.blocks:
        block.compile(**options)
