"""What int8 costs in quality: teacher-forced agreement with the exact path on fixed chat prompts, and perplexity.

For each prompt of bench/data/chat_prompts.txt the exact path writes a greedy reply. Both arithmetics then read prompt
and reply, and their predictions of each token of the reply are compared: how often the likeliest token is the same
(top-1), the Kullback-Leibler divergence of the exact distribution from the other, and the perplexity of the reply.

    python bench/quality.py [--model PATH] [--prompts 100] [--tokens 64] [--threads N]
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headway.executors.torch import LoadedModel, load
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.forward import ForwardPass
from headway.executors.torch.kv_cache import Indices
from headway.text import ChatTemplate, Tokenizer

PROMPTS = Path(__file__).parent / "data" / "chat_prompts.txt"
_BLOCK_SIZE = 16
_NUM_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's reply under both arithmetics; means over its tokens."""

    top1: float
    kl: float
    exact_loss: float
    """Negative log-likelihood of the reply's tokens, exact; the base of perplexity."""
    loss: float


def chat_prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The first prompts of the file in the model's chat template, as token ids."""
    template = ChatTemplate.of(tokenizer)
    questions = PROMPTS.read_text(encoding="utf-8").splitlines()[:count]
    texts = [template.render([{"role": "user", "content": question}]) for question in questions]
    return [tokenizer.encode(text) for text in texts]


def replies(forward: ForwardPass, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """Greedy continuations, past any end of sequence: prompts one by one, then all together token by token."""
    tables = _tables(prompts, num_tokens)
    sequences = [list(prompt) for prompt in prompts]
    for ids, table in zip(sequences, tables, strict=True):
        rows = RequestRows(list(ids), 0, table, num_sampled=1, wants_logits=False)
        ids.append(forward.run([rows]).best_token_ids[0])
    for _ in range(num_tokens - 1):
        step = [
            RequestRows(ids[-1:], len(ids) - 1, table, num_sampled=1, wants_logits=False)
            for ids, table in zip(sequences, tables, strict=True)
        ]
        for ids, token_id in zip(sequences, forward.run(step).best_token_ids, strict=True):
            ids.append(token_id)
    return [ids[len(prompt) :] for ids, prompt in zip(sequences, prompts, strict=True)]


def compare(
    exact: ForwardPass, other: ForwardPass, prompt: Sequence[int], answer: Sequence[int], table: Indices
) -> Comparison:
    """Predictions of one reply by both."""
    ids = [*prompt, *answer]
    rows = [RequestRows(ids[:-1], 0, table, num_sampled=len(answer))]
    theirs, ours = (torch.log_softmax(forward.run(rows).logits.double(), dim=-1) for forward in (exact, other))
    targets = torch.tensor(answer)[:, None]
    return Comparison(
        top1=float((ours.argmax(-1) == theirs.argmax(-1)).double().mean()),
        kl=float((theirs.exp() * (theirs - ours)).sum(-1).mean()),
        exact_loss=-float(theirs.gather(1, targets).mean()),
        loss=-float(ours.gather(1, targets).mean()),
    )


def compare_models(
    exact: LoadedModel, other: LoadedModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[Comparison]:
    """One comparison for each prompt."""
    tables = _tables(prompts, num_tokens)
    passes = [model.forward_pass(int(tables[-1][-1]) + 1, _BLOCK_SIZE) for model in (exact, other)]
    with torch.inference_mode():
        answers = replies(passes[0], prompts, num_tokens)
        return [
            compare(passes[0], passes[1], prompt, answer, table)
            for prompt, answer, table in zip(prompts, answers, tables, strict=True)
        ]


def _tables(prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Indices]:
    """Blocks for each prompt and its reply."""
    tables, first = [], 1
    for prompt in prompts:
        end = first - (-(len(prompt) + num_tokens) // _BLOCK_SIZE)
        tables.append(np.arange(first, end, dtype=np.int64))
        first = end
    return tables


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean, resampling prompts."""
    rng = random.Random(0)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(_NUM_RESAMPLES))
    return means[int(0.025 * _NUM_RESAMPLES)], means[int(0.975 * _NUM_RESAMPLES)]


def main() -> None:
    """Print the comparison of int8 with the exact path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the bundled model")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    exact = load(args.model, device="cpu", num_threads=args.threads)
    other = load(args.model, device="cpu", num_threads=args.threads, quantization="int8")
    path = exact.path
    tokenizer = Tokenizer.from_folder(path) if path.is_dir() else Tokenizer.from_gguf(path)
    results = compare_models(exact, other, chat_prompts(tokenizer, args.prompts), args.tokens)
    print(f"{len(results)} prompts x {args.tokens} tokens, int8 with {other.kv_dtype} KV against exact float32")
    for name in ("top1", "kl"):
        values = [getattr(result, name) for result in results]
        low, high = interval(values)
        print(f"{name:5} {sum(values) / len(values):.4f}  (95 % interval {low:.4f} to {high:.4f})")
    exact_loss, loss = (sum(getattr(r, name) for r in results) / len(results) for name in ("exact_loss", "loss"))
    print(f"perplexity of the replies {math.exp(exact_loss):.4f} exact, {math.exp(loss):.4f} int8")


if __name__ == "__main__":
    main()
