"""What int8 costs in quality, against exact float32: on replies to fixed chat prompts, and on fixed texts.

For each prompt of bench/data/chat_prompts.txt the exact path writes a greedy reply. Each arithmetic then reads prompt
and reply, and its prediction of each token of the reply is compared with the exact one: how often the likeliest token
is the same (top-1), and the Kullback-Leibler divergence of the exact distribution from the other. The passages of
bench/data/texts.txt are read in the same way; there it is perplexity that counts.

    python -m bench.quality [--model PATH] [--prompts 100] [--tokens 64] [--threads N]
                            [--peers openvino,llamacpp,vllm,vllm-bf16] [--envs FOLDER] [--json FILE]

Other engines tell only the 100 likeliest tokens of each place. Their divergence is that of distributions over those and
one token for all the others, which is no more than the whole one. Intervals are of 95 %, by resampling prompts or
passages.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bench.peers import judging
from bench.peers.environments import PEERS, environment
from bench.peers.export_folder import export_folder
from bench.peers.judging import Item, Place
from headway.executors.torch import LoadedModel, load, locate_model
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.forward import ForwardPass
from headway.executors.torch.kv_cache import Indices
from headway.executors.torch.native.compilation import cache_folder
from headway.text import ChatTemplate, Tokenizer

DATA = Path(__file__).parent / "data"
_BLOCK_SIZE = 16
_NUM_RESAMPLES = 1000
_T = TypeVar("_T")
_JUDGES = {"openvino": "openvino", "llamacpp": "llamacpp", "vllm": "vllm", "vllm-bf16": "vllm"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One continuation under both arithmetics; means over its tokens."""

    num_tokens: int
    top1: float
    kl: float
    exact_loss: float
    """Negative log-likelihood of the continuation's tokens, exact; the base of perplexity."""
    loss: float
    """By the other; NaN where it does not tell."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "not told"
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


# ---------------------------------------------------------------- what is read


def chat_prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The first prompts of the file in the model's chat template, as token ids."""
    template = ChatTemplate.of(tokenizer)
    questions = (DATA / "chat_prompts.txt").read_text(encoding="utf-8").splitlines()[:count]
    texts = [template.render([{"role": "user", "content": question}]) for question in questions]
    return [tokenizer.encode(text) for text in texts]


def passages(tokenizer: Tokenizer) -> list[Item]:
    """The passages of the text file: all behind the first token is to be foretold."""
    texts = (DATA / "texts.txt").read_text(encoding="utf-8").split("\n\n")
    ids = [tokenizer.encode(text.strip()) for text in texts]
    return [Item(tokens[:1], tokens[1:]) for tokens in ids]


def replies(forward: ForwardPass, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Item]:
    """Greedy continuations, past any end of sequence: prompts one by one, then all together token by token."""
    tables = _tables([len(prompt) + num_tokens for prompt in prompts])
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
    return [Item(list(prompt), ids[len(prompt) :]) for ids, prompt in zip(sequences, prompts, strict=True)]


def _tables(lengths: Sequence[int]) -> list[Indices]:
    """Blocks for sequences of these lengths."""
    tables, first = [], 1
    for length in lengths:
        end = first - (-length // _BLOCK_SIZE)
        tables.append(np.arange(first, end, dtype=np.int64))
        first = end
    return tables


# ---------------------------------------------------------------- comparing


def predictions(forward: ForwardPass, items: Sequence[Item]) -> Iterator[Tensor]:
    """Log-probabilities [len(continuation), vocab_size] of each item, double precision."""
    for item in items:
        ids = item.prompt + item.continuation
        table = _tables([len(ids)])[0]
        rows = [RequestRows(ids[:-1], 0, table, num_sampled=len(item.continuation))]
        yield torch.log_softmax(forward.run(rows).logits.double(), dim=-1)


def compare(exact: Tensor, other: Tensor, item: Item) -> Comparison:
    """Log-probabilities of one continuation by both."""
    targets = torch.tensor(item.continuation)[:, None]
    return Comparison(
        num_tokens=len(targets),
        top1=float((other.argmax(-1) == exact.argmax(-1)).double().mean()),
        kl=float((exact.exp() * (exact - other)).sum(-1).mean()),
        exact_loss=-float(exact.gather(1, targets).mean()),
        loss=-float(other.gather(1, targets).mean()),
    )


def compare_places(exact: Tensor, places: Sequence[Place], item: Item) -> Comparison:
    """The same with a judge's opinion: the tokens that it reports each by itself, all others as one."""
    ids = torch.tensor([place.ids for place in places])
    told = torch.tensor([place.logprobs for place in places], dtype=torch.float64)
    ours = exact.gather(1, ids)
    rests = [(1 - logprobs.exp().sum(-1)).clamp(min=1e-9) for logprobs in (ours, told)]
    of_told = (ours.exp() * (ours - told)).sum(-1)
    of_rest = rests[0] * (rests[0] / rests[1]).log()
    targets = torch.tensor(item.continuation)[:, None]
    losses = [math.nan if place.own is None else -place.own for place in places]
    return Comparison(
        num_tokens=len(places),
        top1=float((ids[:, 0] == exact.argmax(-1)).double().mean()),
        kl=float((of_told + of_rest).mean()),
        exact_loss=-float(exact.gather(1, targets).mean()),
        loss=sum(losses) / len(losses),
    )


def compare_models(
    exact: LoadedModel, other: LoadedModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[Comparison]:
    """Replies to the prompts, written by the exact one."""
    num_blocks = 1 + sum(-(-(len(prompt) + num_tokens) // _BLOCK_SIZE) for prompt in prompts)
    passes = [model.forward_pass(num_blocks, _BLOCK_SIZE) for model in (exact, other)]
    with torch.inference_mode():
        items = replies(passes[0], prompts, num_tokens)
        both = zip(predictions(passes[0], items), predictions(passes[1], items), items, strict=True)
        return [compare(*three) for three in both]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    estimate = _bootstrap(values, lambda chosen: sum(chosen) / len(chosen))
    return estimate.low, estimate.high


def _bootstrap(items: Sequence[_T], figure: Callable[[Sequence[_T]], float]) -> Estimate:
    rng = random.Random(0)
    figures = sorted(figure(rng.choices(items, k=len(items))) for _ in range(_NUM_RESAMPLES))
    return Estimate(figure(items), figures[int(0.025 * _NUM_RESAMPLES)], figures[int(0.975 * _NUM_RESAMPLES)])


def summary(chats: Sequence[Comparison], texts: Sequence[Comparison]) -> dict[str, Estimate]:
    """The figures of one arithmetic. The ratios are of perplexities, to the exact one."""

    def mean(name: str) -> Callable[[Sequence[Comparison]], float]:
        return lambda results: sum(getattr(result, name) for result in results) / len(results)

    def perplexity_ratio(results: Sequence[Comparison]) -> float:
        total = sum(result.num_tokens for result in results)
        return math.exp(sum((result.loss - result.exact_loss) * result.num_tokens for result in results) / total)

    return {
        "top-1": _bootstrap(chats, mean("top1")),
        "KL": _bootstrap(chats, mean("kl")),
        "perplexity of replies": _bootstrap(chats, perplexity_ratio),
        "perplexity of texts": _bootstrap(texts, perplexity_ratio),
        "KL of texts": _bootstrap(texts, mean("kl")),
    }


def _opinion(name: str, items: Sequence[Item], args: argparse.Namespace) -> list[list[Place]]:
    """Let another engine judge, in its own environment."""
    peer, python = PEERS[name], environment(name, args.envs)
    with tempfile.TemporaryDirectory() as scratch:
        asked, told, model = (Path(scratch) / part for part in ("items", "places", "model"))
        judging.save_items(asked, items)
        if peer.needs_folder:
            export_folder(args.model, model)
        else:
            model = locate_model(args.model)
        root = Path(__file__).parents[1]
        command = [str(python), str(root / "bench" / "peers" / f"judge_{_JUDGES[name]}.py")]
        command += ["--items", str(asked), "--out", str(told), "--model", str(model), "--format", peer.format]
        command += ["--threads", str(args.threads or os.cpu_count())]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{name}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        return judging.read_places(told)


def main() -> None:
    """Print a line for int8, and one for each peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the bundled model")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--peers", default="", help=f"of {', '.join(_JUDGES)}")
    parser.add_argument("--envs", type=Path, default=cache_folder() / "peers")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with torch.inference_mode():
        chats, texts = _measure(args)
    figures = {name: summary(chats[name], texts[name]) for name in chats}
    for what, results in (("replies", chats), ("texts", texts)):
        ours = next(iter(results.values()))
        num_tokens = sum(result.num_tokens for result in ours)
        exact = math.exp(sum(result.exact_loss * result.num_tokens for result in ours) / num_tokens)
        print(f"{len(ours)} {what} of {num_tokens} tokens in all, exact perplexity {exact:.3f}")
    columns = list(next(iter(figures.values())))
    print("\n| engine | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|")
    for name, line in figures.items():
        print(f"| {name} | " + " | ".join(map(str, line.values())) + " |")
    if args.json:
        kept = {name: {key: asdict(value) for key, value in line.items()} for name, line in figures.items()}
        args.json.write_text(json.dumps(kept, indent=1))


def _measure(args: argparse.Namespace) -> tuple[dict[str, list[Comparison]], dict[str, list[Comparison]]]:
    """Comparisons of replies and of texts, by engine."""
    exact = load(args.model, device="cpu", num_threads=args.threads)
    path = exact.path
    tokenizer = Tokenizer.from_folder(path) if path.is_dir() else Tokenizer.from_gguf(path)
    prompts, texts = chat_prompts(tokenizer, args.prompts), passages(tokenizer)
    num_blocks = 1 + sum(-(-(len(prompt) + args.tokens) // _BLOCK_SIZE) for prompt in prompts)
    forward = exact.forward_pass(num_blocks, _BLOCK_SIZE)
    items = [*replies(forward, prompts, args.tokens), *texts]
    opinions = {f"{name}, {PEERS[name].format}": _opinion(name, items, args) for name in args.peers.split(",") if name}
    int8 = load(args.model, device="cpu", num_threads=args.threads, quantization="int8")
    ours = predictions(int8.forward_pass(num_blocks, _BLOCK_SIZE), items)
    results: dict[str, list[Comparison]] = {"headway, int8": [], **{name: [] for name in opinions}}
    for index, (item, reference, own) in enumerate(zip(items, predictions(forward, items), ours, strict=True)):
        results["headway, int8"].append(compare(reference, own, item))
        for name, places in opinions.items():
            results[name].append(compare_places(reference, places[index], item))
    count = len(prompts)
    return {name: some[:count] for name, some in results.items()}, {
        name: some[count:] for name, some in results.items()
    }


if __name__ == "__main__":
    main()
