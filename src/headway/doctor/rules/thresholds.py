"""Every threshold of the rules, each with its reason. None of them alone makes a bottleneck."""

from __future__ import annotations

# ---------------------------------------------------------------- queues
QUEUE_SHARE = 0.5
"""A queue that is there in half of the busy samples is no burst: arrivals in clumps leave it empty most of the time."""
QUEUE_LEAST_SAMPLES = 3
"""Fewer samples show an instant, not a state; then only the depth of the queue can speak."""
QUEUE_DEPTH_SHARE = 0.1
"""Waiting requests per running one. A busy server admits within a step or two, so that a scrape often sees a few wait;
a tenth of the batch does not pass in a step."""
QUEUE_WAIT_S = 0.5
"""Expected wait (waiting / completions a second) below which users notice nothing beside a prefill."""
GROWING_SHARE = 0.5
"""A queue grows if, over the time seen, it gained half of its own mean: rates that balance leave it level."""

# ---------------------------------------------------------------- gates of admission
SEATS_FULL = 0.97
"""Share of max_num_seqs that counts as all: a scrape catches seats between a finish and the next admission."""
SEATS_FREE = 0.9
"""Below this share of max_num_seqs the seats were never what held a request back."""
KV_FULL = 0.97
"""KV usage at which the next block may be lacking. Usage counts whole blocks and the pool keeps one back."""
KV_TIGHT = 0.90
"""With requests waiting and seats free, usage from here on means that the next prompt's blocks were lacking: prompts of
a tenth of the pool are common where pools are small."""
KV_ROOM = 0.85
"""Below this, KV blocks were not what held requests back, unless one request needs more than a seventh of the pool."""
LEAST_ROUND_SEATS = 8
"""From here on a round number of running requests in a single sample is no chance where others wait."""
PINNED_SPREAD = 0.02
"""Running requests that vary by less than this over the samples sit at a limit, known or not."""

# ---------------------------------------------------------------- preemption and filling up
PREEMPTED_SHARE = 0.01
"""Preemptions per finished request. Each recomputes its request's whole context; one in a hundred costs under 1 % of
the compute and shows in the P99."""
PREEMPTED_OFTEN = 0.05
"""From here on the P95 shows it."""
SILENT_FALL = 0.02
"""Share of the running requests that must have gone back to the queue before a conserved total is called preemption:
one or two may have finished while as many arrived."""
FILLING_FROM = 0.8
"""A pool that fills is only of concern near its end: below, any server that warms up looks like this."""
FILLING_HORIZON_S = 600.0
"""Full within ten minutes: somebody should act now."""
FILLING_RUNNING_SPREAD = 0.05
"""The pool fills by growth of the same requests if their number stays within this; else it follows the load."""
HOG_RUNNING = 2.0
"""At most so many running requests that own most of the pool while others wait."""
HOG_USAGE = 0.5
"""A pool that is half taken by one or two requests cannot take another of their size."""
FEW_RUNNING = 32
"""With fewer running requests fewer seats gain little: the batch is small because requests are large, and each one less
costs a noticeable part of the throughput."""

# ---------------------------------------------------------------- standing still
STALL_TOKENS_PER_S = 0.25
"""Tokens a second for each running request: less than one in four seconds is slower than any device decodes a model
that it was thought worth loading."""
STALL_PROMPT_TOKENS_PER_S = 1.0
"""Prompt tokens a second that count as none."""
STALL_LEAST_SAMPLES = 2
"""One empty interval is a pause; two in a row are a state."""
STALL_LEAST_S = 8.0
"""A step with a large chunk takes seconds on a slow device: in samples taken more often than vLLM's own ten seconds, so
many seconds without a token are no more than that."""
PLAUSIBLE_PREFILL = 1000.0
"""Prompt tokens a second over a whole standstill from which a long prefill explains it; engines count a prompt's tokens
when it is done. Slower than that only the smallest devices compute."""
PREFILL_USAGE = 0.02
"""Growth of KV usage over a standstill from which prompts are being computed: one block is less in any usual pool."""
LEAK_USAGE = 0.01
"""KV usage with nothing running or waiting. Cached blocks count as free, so that an idle pool reads 0."""
IDLE_RUNNING = 0.5
"""Mean running requests below which the engine mostly has nothing to do."""
IDLE_SHARE = 0.25
"""Share of samples in which anything runs or any token is counted, up to which an engine is idle rather than lightly
loaded: short requests are gone before a scrape sees them."""

# ---------------------------------------------------------------- prefill and chunks
PURE_PREFILL_OUTPUT_TOKENS = 4.0
"""At so few output tokens decoding is a few steps of one token: nearly all compute is prefill."""
PREFILL_TOKEN_SHARE = 0.5
"""Share of computed tokens that are prompt tokens from which prefill rules the step time: a prompt token costs at least
what a decoded one does where compute limits."""
BUDGET_FULL = 0.8
"""Mean tokens in a step over max_num_batched_tokens, from which the budget is what shapes the steps."""
STALL_RATIO = 4.0
"""A gap between tokens this many times the usual one is a stall: batching alone varies step times by less than two."""
STALLED_ITL_S = 0.5
"""Without a target, a gap that everybody sees: reading takes about five tokens a second."""
BAD_ITL_S = 1.0
"""Longer gaps look like a hang."""
ITL_TARGETS_S = (0.5, 0.1)
"""Chunks are given for these where no target is set: text stays readable; speech and tools stay fluent."""
SMALL_CHUNK_EFFICIENCY = 0.6
"""Prefill rate at the budget over that at 8,192 tokens, below which the fixed cost of steps eats the rest."""
SMALL_CHUNK = 1024
"""Only budgets up to this can be too small: above, weights are read once for so many rows that arithmetic rules."""
HUGE_BUDGET = 16384
"""Budgets above this only cost memory where prompts are cut into chunks: no GPU gains throughput from them."""
OFFERED_MARGIN = 1.05
"""Offered over possible, from which a queue must grow whatever the noise of the estimate."""
WORTHWHILE_GAIN = 1.1
"""Throughput that a larger batch must give by physics before seats or blocks are called the limit of an overload."""

# ---------------------------------------------------------------- long prompts
TAIL_RATIO = 10.0
"""P99 over P50 of the time to first token. Poisson arrivals at a load of 0.8 give about 5."""
LONG_PROMPT_RATIO = 8.0
"""Longest over median prompt from which they are two kinds of load."""
LONG_PROMPT_ROUNDS = 4.0
"""Steps that a long prompt takes the budget for: fewer pass unnoticed."""
BURST_SHARE = 0.7
"""A queue that is there more often than this is not one that comes and goes with long prompts."""

# ---------------------------------------------------------------- decode
FLAT_GAIN = 0.1
"""Throughput gained by doubling the concurrency, below which it is flat."""
LINEAR_SHARE = 0.9
"""Throughput per stream over that of a single stream, from which batching costs nothing."""
AT_FLOOR = 0.4
"""Physical floor over measured step time, from which the floor is the reason: kernels reach 60 to 80 % of it, and a
batch's own overheads take the rest."""
SLOW_TOKENS_PER_S = 100.0
"""On a card of the H100's class: fewer tokens a second than any model that fits it gives with some concurrency."""
FAST_CARD_GBPS = 2000.0
"""Bandwidth of that class (H100 PCIe and up)."""
CLIENT_SHARE = 0.5
"""Running and waiting together over the client's concurrency, below which requests are stuck outside the engine."""
CLIENT_TTFT_RATIO = 3.0
"""Client's time to first token over the engine's own, from which most of it passes outside."""
SPECULATION_GAIN = 1.05
"""Tokens gained over time lost, below which speculation does not pay."""
LAUNCH_SHARE = 0.3
"""Share of an eager step that waits for launches, from which CUDA graphs are worth more than other knobs."""
HIGHEST_UTILIZATION = 0.95
"""Above it CUDA graphs and fragmentation have no room."""
HIGHEST_SHARED_UTILIZATION = 0.85
"""Highest where the GPU's memory is the host's too."""
LOW_UTILIZATION = 0.7
"""gpu_memory_utilization below this leaves memory lying; it is raised before anything else is turned."""
NO_CHANGE = 0.03
"""Measured effects below this are noise."""
