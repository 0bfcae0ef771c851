"""The arguments that every runner takes. Standard library only."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that `python -m bench.peers` passes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--workload", type=Path, required=True, help="made by workload.save")
    made.add_argument("--model", required=True, help="a GGUF file, or for some peers a Hugging Face folder")
    made.add_argument("--format", required=True, help="number format of the weights, as the peer calls it")
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--budget", type=int, required=True, help="tokens of one step")
    made.add_argument("--seats", type=int, default=64, help="requests that run at once")
    made.add_argument("--kv-tokens", type=int, default=32768, help="tokens that the KV cache holds")
    return made
