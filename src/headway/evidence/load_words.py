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
    ("num_requests", rf"(?:--num[-_]prompts[= ]\s*|\bnum[-_]prompts\s*[=:]?\s*){_N}"),
    ("num_requests", rf"\b{_N}\s+(?:prompts|requests)\b"),
    ("concurrency", rf"(?:--?)?\b(?:max[-_ ]concurrency|concurrency|concurrent)\s*[=:]?\s*{_N}"),
    ("concurrency", rf"\bC\s*=\s*{_N}"),
    ("concurrency", rf"\b{_N}\s+(?:concurrent|clients|users|streams)\b"),
    ("requests_per_s", rf"(?:--request[-_]rate[= ]\s*|\brequest rate\s*[=:]?\s*){_N}"),
    ("requests_per_s", rf"\b{_N}\s*(?:req(?:uest)?s?\s*/\s*s(?:ec)?|rps|qps)\b"),
)
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
    return run
