"""A batching policy of one's own: among those that wait, the shortest prompt goes first.

    headway simulate --model llama-3.1-8b --gpu l40s --max-model-len 20000 --num-prompts 300 --request-rate 12 \
        --prompt-tokens lognormal:median=800,sigma=1.2,max=16000 --compare-policies \
        --policy examples/shortest_prompt_first.py
    headway bench --policies chunked,examples/shortest_prompt_first.py

The mean time to first token falls, and the longest prompts pay for it: look at the p99.
"""

from __future__ import annotations

from headway.core.policies import ChunkedPolicy
from headway.core.queues import PriorityQueue, WaitingQueue


class ShortestPromptFirst(ChunkedPolicy):
    """Continuous batching with chunked prefill, and a queue that is sorted by length of prompt."""

    name = "shortest-first"
    may_fast_forward = True  # who is admitted depends on the queue alone, and not on how often it is asked

    def queue(self, usual: WaitingQueue) -> WaitingQueue:
        """Shortest prompt first, then by arrival."""
        return PriorityQueue(key=lambda request: (request.num_prompt_tokens, request.arrived_at))
