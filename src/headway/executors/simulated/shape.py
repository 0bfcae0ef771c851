"""From a step plan to what the step asks of the device."""

from __future__ import annotations

from headway.core.plan import StepPlan
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a step, padding rows included.

    One token that is not a draft is a decode, also where it is the last token of a prompt: the device cannot tell.
    Padding of a prompt lengthens its chunk; padding beside decodes is rows without a context.
    """
    run = plan.lockstep
    if run is not None and not plan.scheduled and not run.num_padding_tokens:
        return decode_shape(run.num_requests, run.num_context_tokens)
    chunks = []
    num_decodes = num_rows = num_context = num_sampled = 0
    if run is not None:
        num_decodes = num_sampled = run.num_requests
        num_rows = num_decodes + run.num_padding_tokens
        num_context = run.num_context_tokens
    for item in plan.scheduled:
        num_tokens = item.num_tokens
        if num_tokens - item.num_draft_tokens == 1:
            num_decodes += 1
            num_rows += num_tokens + item.num_padding_tokens
            num_context += item.num_computed_tokens + num_tokens
        else:
            chunks.append(Chunk(num_tokens + item.num_padding_tokens, item.num_computed_tokens))
        num_sampled += item.samples
    return StepShape(tuple(chunks), num_decodes, num_rows, num_context, num_sampled)
