"""What every reader returns: one start of vLLM, with its words or settings and what surrounds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from headway.deployment.arguments import Written
from headway.deployment.words import Word

Form = Literal["serve", "api_server", "image", "settings"]
"""`serve`: words after `vllm serve`. `api_server`: words after the module. `image`: words for the entry point of vLLM's
image, which is the module up to 0.11.0 and `vllm serve` after. `settings`: given by name, not parsed."""
Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Lint:
    """Something that a reader of the deployment should know. `rule` is stable; `settings` are those concerned."""

    rule: str
    level: Level
    message: str
    line: int = 0
    settings: tuple[str, ...] = ()


@dataclass(slots=True)
class Invocation:
    """One start of vLLM in a file.

    `facts` are what the form says beyond flags: `accelerator`, `accelerator_memory`, `engine` ("V0" or "V1"),
    `num_gpus`, `usage` ("llm" for the offline class), `max_num_seqs_default` of a wrapper.
    """

    form: Form
    source: str
    line: int = 0
    name: str = ""
    words: list[Word] = field(default_factory=list)
    settings: dict[str, Written] = field(default_factory=dict)
    environment: dict[str, Word] = field(default_factory=dict)
    image: str | None = None
    lints: list[Lint] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    config_files: dict[str, str] = field(default_factory=dict)
    """Text of the files that `--config` may name, by path as written."""

    def lint(self, rule: str, level: Level, message: str, line: int = 0, *settings: str) -> None:
        """Add a lint."""
        self.lints.append(Lint(rule, level, message, line, settings))
