"""What a sentence or a command line says of the load: `isl 1024, 768 prompts, max-concurrency 64; osl 1`."""

from __future__ import annotations

import re

from headway.evidence.run_rows import Run

_N = r"~?(\d[\d,]*(?:\.\d+)?)\s*([kK](?![a-zA-Z]))?"
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("mean_prompt_tokens", rf"(?:--?)?\b(?:random[-_])?(?:isl|input[-_ ]len(?:gth)?|in|input|prompt)\s*[=:~]?\s*{_N}"),
    ("mean_prompt_tokens", rf"\b{_N}(?:-in\b|[- ]input tokens|[- ]token prompts|[- ]prefills)"),
    ("mean_output_tokens", rf"(?:--?)?\b(?:random[-_])?(?:osl|output[-_ ]len(?:gth)?|out|output)\s*[=:~]?\s*{_N}"),
    ("mean_output_tokens", rf"\b{_N}(?:-out\b|[- ]output tokens)"),
    ("mean_output_tokens", rf"\bmax[-_ ]tokens\s*[=:]?\s*{_N}"),
    ("num_requests", rf"(?:--num[-_]prompts[= ]\s*|\bnum[-_]prompts\s*[=:]?\s*){_N}"),
    ("num_requests", rf"\b{_N}\s+(?:sequential\s+)?(?:prompts|requests)\b"),
    ("concurrency", rf"(?:--?)?\b(?:max[-_ ]concurrency|concurrency|concurrent)\s*[=:]?\s*{_N}"),
    ("concurrency", rf"\bC\s*=\s*{_N}"),
    ("concurrency", rf"\b{_N}\s+(?:concurrent|clients|users|streams)\b"),
    ("requests_per_s", rf"(?:--request[-_]rate[= ]\s*|\brequest rate\s*[=:]?\s*){_N}"),
    ("requests_per_s", rf"\b{_N}\s*(?:req(?:uest)?s?\s*/\s*s(?:ec)?|rps|qps)\b"),
)
CHARACTERS_PER_TOKEN = 4.0
"""Of English text, by any current tokenizer to within a quarter."""
_ONE_BY_ONE = re.compile(
    r"\b(?:sequential(?:ly)?|one (?:by one|at a time|after (?:another|the other)))\b", re.IGNORECASE
)
_CHARACTERS = re.compile(r"\b(\d[\d,]{0,11})[- ]char(?:acter)?s?\b(?=[- ]\w* ?prompt| each)", re.IGNORECASE)
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _PATTERNS)


def load_of_words(text: str) -> Run:
    """The load as far as a text tells it; of alternatives the first. Nothing if it speaks of no load."""
    run = Run()
    words = text[:5000]
    for name, pattern in _COMPILED:
        if getattr(run, name) is not None:
            continue
        match = pattern.search(words)
        if match is not None:
            value = float(match[1].replace(",", "")) * (1000.0 if match[2] else 1.0)
            if 0.0 < value < 1e9:
                setattr(run, name, value)
    if run.concurrency is None and _ONE_BY_ONE.search(words):
        run.concurrency = 1
    if run.mean_prompt_tokens is None and (match := _CHARACTERS.search(words)):
        run.mean_prompt_tokens = float(match[1].replace(",", "")) / CHARACTERS_PER_TOKEN
    return run
