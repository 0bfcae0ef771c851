"""What vLLM does to its words before parsing: `--model` after `vllm serve`, and `--config`."""

from __future__ import annotations

from collections.abc import Callable

from headway.catalog.versions import Version
from headway.deployment.arguments import Problem
from headway.deployment.invocation import Invocation, Lint
from headway.deployment.words import Word

ConfigReader = Callable[[Invocation, str, Version, list[Lint]], list[Word] | None]


def prepare_words(
    invocation: Invocation, version: Version, lints: list[Lint], read_config: ConfigReader
) -> tuple[list[Word], list[Problem]]:
    """The words to parse, with the config file's in their place, and what stops vLLM before it parses.

    Words of the file go after the model and before all others, so that the command line wins.
    """
    words = list(invocation.words)
    problems: list[Problem] = []
    is_serve = invocation.form == "serve" or (invocation.form == "image" and version >= (0, 11, 1))
    if is_serve:
        words = _move_model(words, version, lints, problems)
    equal = next((word for word in words if word.text.startswith("--config=")), None)
    if equal is not None:
        message = (
            f"{equal.text} is not read: vLLM looks for --config as a word of its own. Without it the model and every "
            "setting of the file are missing."
        )
        lints.append(Lint("config-with-equals", "error", message, equal.line, ("config",)))
    texts = [word.text for word in words]
    if "--config" not in texts:
        return words, problems
    index = texts.index("--config")
    if texts.count("--config") > 1:
        problems.append(Problem("config", "--config", "more than one config file", words[index].line))
    if index + 1 >= len(words):
        problems.append(Problem("config", "--config", "no config file after --config", words[index].line))
        return words[:index], problems
    path = words[index + 1]
    if not path.text.endswith((".yaml", ".yml")):
        problems.append(
            Problem("config", "--config", f"the config file must end in .yaml or .yml: {path.text}", path.line)
        )
    content = read_config(invocation, path.text, version, lints)
    if content is None:
        message = f"The file {path.text} of --config is not at hand; its settings are not known."
        lints.append(Lint("config-not-read", "warning", message, path.line, ("config",)))
        content = []
    rest = [*words[:index], *words[index + 2 :]]
    if is_serve and rest and not rest[0].text.startswith("-"):
        return [rest[0], *content, *rest[1:]], problems
    if is_serve and not any(word.text == "--model" for word in content) and invocation.config_files:
        problems.append(Problem("config", "--config", "no model, neither as an argument nor in the file", path.line))
    return [*content, *rest], problems


def _move_model(words: list[Word], version: Version, lints: list[Lint], problems: list[Problem]) -> list[Word]:
    """`vllm serve --model M`: moved to the front since 0.11.1, refused from 0.8.0 to 0.11.0."""
    index = next((at for at, word in enumerate(words) if word.text == "--model"), None)
    joined = next((at for at, word in enumerate(words) if word.text.startswith("--model=")), None)
    if index is None and joined is None:
        return words
    where = index if index is not None else joined
    assert where is not None
    lints.append(
        Lint(
            "model-flag",
            "warning",
            "--model with `vllm serve` is the deprecated form; give the model as the first argument.",
            words[where].line,
            ("model",),
        )
    )
    if index is not None and version < (0, 11, 1):
        message = "With `vllm serve`, you should provide the model as a positional argument"
        if version >= (0, 8, 0):
            problems.append(Problem("refused", "--model", message, words[index].line))
        return words
    if index is not None and index + 1 < len(words) and (joined is None or index < joined or version < (0, 17, 0)):
        return [words[index + 1], *words[:index], *words[index + 2 :]]
    if joined is not None and version >= (0, 17, 0):
        _, model = words[joined].partition("=")
        return [model or Word(""), *words[:joined], *words[joined + 1 :]]
    return words
