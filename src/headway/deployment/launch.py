"""Finds the start of vLLM in the words of a command: behind wrappers, in a container, in `sh -c`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from headway.deployment.invocation import Form, Invocation
from headway.deployment.words import Word

MAX_NESTING = 8
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash", "ksh"))
_CONTAINERS = frozenset(("docker", "podman", "nerdctl", "docker.exe"))
_WRAPPERS: dict[str, tuple[str, ...]] = {
    "sudo": ("-u", "-g", "-p", "-h", "-C"),
    "nohup": (),
    "exec": ("-a",),
    "time": ("-f", "-o"),
    "nice": ("-n",),
    "ionice": ("-c", "-n"),
    "stdbuf": ("-i", "-o", "-e"),
    "numactl": ("-N", "-m", "-C", "-i", "-p"),
    "taskset": (),
    "setsid": (),
    "tini": ("-p",),
    "dumb-init": (),
    "srun": ("-n", "-N", "-c", "-p", "-w", "-t", "-J", "-o", "-e", "-G"),
    "mpirun": ("-np", "-n", "-H", "-x"),
    "unbuffer": (),
    "catchsegv": (),
    "command": (),
    "singularity": (),
    "apptainer": (),
}
_RUNNERS = frozenset(("uv", "poetry", "pipenv", "pdm", "conda", "rye", "hatch", "micromamba", "pixi"))
_RUNNER_VALUES = frozenset((
    "-n", "--name", "-p", "--prefix", "--python", "--with", "--extra", "--directory", "--project", "--env-file",
    "--group", "--index-url",
))  # fmt: skip
_DOCKER_SWITCHES = frozenset((
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-id", "-di", "-itd", "-dit", "-tid", "-P",
    "--publish-all", "--rm", "--init", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable",
    "--sig-proxy", "--disable-content-trust", "-q", "--quiet", "--use-api-socket", "--replace", "--tls-verify",
))  # fmt: skip
_MODULE = re.compile(r"vllm(\.\w+)*\.(api_server|entry)$|vllm\.entrypoints\.cli\.main$|vllm$")
_PYTHON = re.compile(r"(python|pypy)[0-9.]*(\.exe)?$")


def find_start(
    words: Sequence[Word], environment: dict[str, Word] | None = None, *, source: str, image_args: bool = False
) -> Invocation | None:
    """The vLLM start that a command makes, or None.

    Args:
        image_args: the words go to a container image whose entry point starts vLLM, so flags alone count.
    """
    return _find(list(words), dict(environment or {}), source, image_args, 0)


def _find(
    words: list[Word], environment: dict[str, Word], source: str, image_args: bool, depth: int
) -> Invocation | None:
    words = _strip(words, environment)
    if not words or depth > MAX_NESTING:
        return None
    name = _basename(words[0].text)
    if name in ("vllm", "vllm.exe"):
        return _vllm(words[1:], environment, source)
    if _PYTHON.fullmatch(name):
        return _python(words[1:], environment, source, image_args)
    if name in _CONTAINERS:
        return _container(words, environment, source, depth)
    if name in _SHELLS:
        return _shell(words[1:], environment, source, depth)
    if name in ("ray", "kubectl", "ssh", "tmux", "screen", "systemd-run", "accelerate", "torchrun"):
        return _after_marker(words, environment, source, depth)
    if image_args and (words[0].text.startswith("-") or _looks_like_model(words[0].text)):
        return _start("image", words, environment, source)
    if image_args and name == "serve":
        return _start("serve", words[1:], environment, source)
    return None


def _strip(words: list[Word], environment: dict[str, Word]) -> list[Word]:
    """Leave out wrappers and `NAME=value` words, which go to the environment."""
    while words:
        name = _basename(words[0].text)
        if name in ("env", "/usr/bin/env") or re.fullmatch(r"[A-Za-z_]\w*=.*", words[0].text, re.DOTALL):
            if name != "env":
                left, right = words[0].partition("=")
                environment[left.text] = right or Word("")
            words = words[1:]
            if name == "env":
                words = _skip_options(words, ("-u", "-C", "-S"))
        elif name in _WRAPPERS:
            words = _skip_options(words[1:], _WRAPPERS[name])
            if name in ("tini", "dumb-init") and words and words[0].text == "--":
                words = words[1:]
            elif name in ("taskset",) or (name in ("singularity", "apptainer") and words):
                words = (
                    words[1:] if name == "taskset" else _skip_options(words[1:], ("-B", "--bind", "--env", "--pwd"))[1:]
                )
        elif name == "timeout":
            words = _skip_options(words[1:], ("-s", "-k"))[1:]
        elif name in _RUNNERS and len(words) > 1 and words[1].text == "run":
            words = _skip_options(words[2:], tuple(_RUNNER_VALUES))
        else:
            break
    return words


def _skip_options(words: list[Word], with_value: tuple[str, ...]) -> list[Word]:
    while words and words[0].text.startswith("-") and words[0].text != "--":
        words = words[2:] if words[0].text in with_value else words[1:]
    return words[1:] if words and words[0].text == "--" else words


def _vllm(words: list[Word], environment: dict[str, Word], source: str) -> Invocation | None:
    if not words or words[0].text != "serve":
        return None
    return _start("serve", words[1:], environment, source)


def _python(words: list[Word], environment: dict[str, Word], source: str, image_args: bool) -> Invocation | None:
    while words and words[0].text.startswith("-") and words[0].text != "-m":
        words = words[2:] if words[0].text in ("-W", "-X") else words[1:]
    if len(words) > 1 and words[0].text == "-m" and (match := _MODULE.match(words[1].text)):
        rest = words[2:]
        if match.group(2) is None:
            return _vllm(rest, environment, source)
        return _start("api_server", rest, environment, source)
    if words and re.search(r"vllm/entrypoints/.*api_server\.py$|(^|/)api_server\.py$", words[0].text):
        return _start("api_server", words[1:], environment, source)
    if len(words) > 1 and _basename(words[0].text) == "vllm" and words[1].text == "serve":
        return _vllm(words[1:], environment, source)
    return None


def _shell(words: list[Word], environment: dict[str, Word], source: str, depth: int) -> Invocation | None:
    from headway.deployment.shell import read_script
    from headway.deployment.shell_expand import Variables

    for index, word in enumerate(words):
        if re.fullmatch(r"-[a-z]*c", word.text) and index + 1 < len(words):
            inner = words[index + 1]
            known = Variables({name: (value,) for name, value in environment.items()})
            script = read_script(inner.text, known, line=inner.line or 1, depth=depth)
            for command in script.commands:
                found = _find(list(command.words), environment | command.environment, source, False, depth + 1)
                if found is not None:
                    return found
    return None


def _after_marker(words: list[Word], environment: dict[str, Word], source: str, depth: int) -> Invocation | None:
    """Commands that start another after `--`, or from the first word that can start vLLM."""
    for index, word in enumerate(words[1:], start=1):
        if word.text == "--":
            is_image = _basename(words[0].text) == "kubectl"
            return _find(words[index + 1 :], environment, source, is_image, depth + 1)
        name = _basename(word.text)
        if name == "vllm" or _PYTHON.fullmatch(name):
            return _find(words[index:], environment, source, False, depth + 1)
        if " " in word.text and "vllm" in word.text:
            return _shell([Word("-c"), word], environment, source, depth)
    return None


def _container(words: list[Word], environment: dict[str, Word], source: str, depth: int) -> Invocation | None:
    start = next((index for index, word in enumerate(words[:8]) if word.text in ("run", "create", "exec")), None)
    if start is None:
        return None
    inside: dict[str, Word] = {}
    entry: list[Word] = []
    gpus, rest = None, words[start + 1 :]
    while rest and rest[0].text.startswith("-"):
        option, value = rest[0].partition("=")
        has_value = value is not None or option.text in _DOCKER_SWITCHES
        if not has_value:
            value = rest[1] if len(rest) > 1 else Word("")
        rest = rest[1:] if has_value else rest[2:]
        if option.text in ("-e", "--env") and value is not None:
            name, given = value.partition("=")
            inside[name.text] = given or environment.get(name.text, Word(f"${name.text}", (f"${name.text}",)))
        elif option.text == "--entrypoint" and value is not None and value.text:
            entry = [value]
        elif option.text == "--gpus" and value is not None:
            gpus = value.text
    if not rest:
        return None
    image, rest = rest[0], rest[1:]
    found = _find([*entry, *rest], inside, source, not entry, depth + 1) if entry or rest else None
    if found is None and entry and _basename(entry[0].text) in _SHELLS | {"vllm"}:
        return None
    if found is not None:
        options = [word.text for word in words[start + 1 :] if word.text.startswith("-")]
        mine = options[: len(options) - len([word for word in rest if word.text.startswith("-")])]
        if mine:
            message = (
                f"Options of {_basename(words[0].text)}, not of the engine: {', '.join(dict.fromkeys(mine))[:300]}."
            )
            found.lint("container-options", "note", message, words[0].line)
        found.image = found.image or image.text
        if (count := _gpu_count(gpus)) is not None:
            found.facts["num_gpus"] = count
    return found


def _gpu_count(text: str | None) -> int | None:
    if text is None:
        return None
    if match := re.fullmatch(r"['\"]?device=([\w,:-]+)['\"]?", text):
        return len(match.group(1).split(","))
    return int(text) if text.isdigit() and len(text) < 6 else None


def _start(form: Form, words: list[Word], environment: dict[str, Word], source: str) -> Invocation:
    line = next((word.line for word in words if word.line), 0)
    return Invocation(form=form, source=source, line=line, words=words, environment=environment)


def _looks_like_model(text: str) -> bool:
    return "/" in text and not text.endswith((".py", ".sh")) and " " not in text


def _basename(text: str) -> str:
    return PurePosixPath(text.replace("\\", "/")).name if text else ""
