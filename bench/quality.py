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


def reply(forward: ForwardPass, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """A greedy continuation, past any end of sequence, computed alone in the first blocks of the cache."""
    table = _table(len(prompt) + num_tokens)
    ids, start = list(prompt), 0
    for _ in range(num_tokens):
        rows = RequestRows(ids[start:], start, table, num_sampled=1, wants_logits=False)
        start = len(ids)
        ids.append(forward.run([rows]).best_token_ids[0])
    return ids[len(prompt) :]


def compare(exact: ForwardPass, other: ForwardPass, prompt: Sequence[int], num_tokens: int) -> Comparison:
    """Predictions of the exact path's reply by both."""
    ids = [*prompt, *reply(exact, prompt, num_tokens)]
    rows = [RequestRows(ids[:-1], 0, _table(len(ids)), num_sampled=num_tokens)]
    theirs, ours = (torch.log_softmax(forward.run(rows).logits.double(), dim=-1) for forward in (exact, other))
    targets = torch.tensor(ids[len(prompt) :])[:, None]
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
    num_blocks = len(_table(max(map(len, prompts)) + num_tokens)) + 1
    passes = [model.forward_pass(num_blocks, _BLOCK_SIZE) for model in (exact, other)]
    with torch.inference_mode():
        return [compare(passes[0], passes[1], prompt, num_tokens) for prompt in prompts]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean, resampling prompts."""
    rng = random.Random(0)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(_NUM_RESAMPLES))
    return means[int(0.025 * _NUM_RESAMPLES)], means[int(0.975 * _NUM_RESAMPLES)]


def _table(num_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(1, 1 - (-num_tokens // _BLOCK_SIZE), dtype=np.int64)


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
