"""Records what vLLM's own argument parser and config classes make of generated command lines.

Runs where vLLM is installed, not here, and imports nothing of headway:

    python tests/deployment/record_goldens.py tests/deployment/goldens_0.32.0.jsonl.gz

Each line of the output: `argv` (after `vllm serve`; MODEL stands for a small Llama folder), `args` (values that differ
from the parser's defaults) or `error` (the parser's message), `config` (values after the config classes, on the CPU
build) or `config_error`. `config_file` is the text of the file that `--config CONFIG.yaml` names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gzip
import io
import json
import random
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VALUES: dict[str, list[str]] = {
    "--max-model-len": ["4096", "8k", "8K", "2.5k", "1m", "auto", "-1", "2.5K", "eight", " 4096 "],
    "--max-num-batched-tokens": ["2048", "16K", "16k", "8192", "0.5k", "64"],
    "--max-num-seqs": ["1", "64", "256", "1_000", "8k"],
    "--gpu-memory-utilization": ["0.9", ".85", "1", "9e-1", "high"],
    "--tensor-parallel-size": ["1", "2", "x"],
    "-tp": ["1", "2"],
    "--pipeline-parallel-size": ["1"],
    "-dp": ["1"],
    "--block-size": ["16", "128", "17x"],
    "--kv-cache-dtype": ["auto", "fp8", "fp8_e5m2", "fp16"],
    "--dtype": ["auto", "half", "bfloat16", "float32", "int8"],
    "--port": ["8000", "8111", "8111--host"],
    "--host": ["0.0.0.0", "localhost"],
    "--served-model-name": ["a", "a b", "name with blank"],
    "--seed": ["0", "42", "-1"],
    "--quantization": ["fp8", "awq", "None", ""],
    "-q": ["fp8"],
    "--tokenizer": ["None", "some/tokenizer"],
    "--speculative-config": ['{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}', "{bad"],
    "--limit-mm-per-prompt": ['{"image": 2}', '{"image": 2, "video": 0}'],
    "--hf-overrides": ['{"a": {"b": 1}}', "plain"],
    "--override-generation-config": ['{"temperature": 0.5}'],
    "--cudagraph-capture-sizes": ["1 2 4", "8"],
    "--scheduling-policy": ["fcfs", "priority", "sjf"],
    "--long-prefill-token-threshold": ["0", "512"],
    "--reasoning-parser": ["qwen3"],
    "--tool-call-parser": ["hermes"],
    "--load-format": ["auto", "dummy"],
    "--cpu-offload-gb": ["0", "1.5"],
    "--max-logprobs": ["20", "-1"],
    "--api-key": ["k1", "k1 k2"],
    "--uvicorn-log-level": ["info", "loud"],
    "--generation-config": ["vllm"],
    "--distributed-executor-backend": ["mp", "uni"],
    "--max-num-queued-tokens": ["1k", "4K"],
    "--allowed-origins": ['["*"]', '["a", "b"]'],
    "--kv-cache-memory-bytes": ["1g", "2G"],
    "--middleware": ["m.one", "m.two"],
    "--watermark": ["0.1"],
    "--max-num-active-seqs": ["32"],
    "--structured-outputs-config": ['{"backend": "xgrammar"}'],
    "--additional-config": ['{"x": 1}'],
    "--chat-template-content-format": ["openai", "weird"],
    "--data-parallel-size-local": ["1"],
    "--optimization-level": ["2"],
}
SWITCHES = [
    "--enable-prefix-caching",
    "--enable-chunked-prefill",
    "--enforce-eager",
    "--trust-remote-code",
    "--async-scheduling",
    "--enable-auto-tool-choice",
    "--disable-log-stats",
    "--enable-expert-parallel",
    "--enable-lora",
    "--headless",
    "--enable-sleep-mode",
    "--skip-tokenizer-init",
    "--enable-log-requests",
    "--scheduler-reserve-full-isl",
    "--disable-hybrid-kv-cache-manager",
    "--enable-prompt-tokens-details",
]
DOTTED = [
    ("--speculative-config.method", ["ngram"]),
    ("--speculative-config.num_speculative_tokens", ["3", "2"]),
    ("--speculative_config.prompt_lookup_max", ["4"]),
    ("--hf-overrides.a.b", ["1", "text", "8k", "[1, 2]", "true"]),
    ("--hf-overrides.list+", ["x,y", "z"]),
    ("--limit-mm-per-prompt.image", ["2"]),
    ("--structured-outputs-config.backend", ["xgrammar"]),
    ("--override-generation-config.top_p", ["0.9"]),
]
ODD = [
    ["--device", "cuda"],
    ["--swap-space", "4"],
    ["--disable-log-requests"],
    ["--no-such-flag"],
    ["--max-num", "4"],
    ["--enforce-eager=true"],
    ["-O3"],
    ["-O", "2"],
    ["-O=1"],
    ["-O0"],
    ["extra-positional"],
    ["--"],
    ["-5"],
    ["--config=CONFIG.yaml"],
    ["--guided-decoding-backend", "x"],
    ["--num-scheduler-steps", "8"],
    ["-x"],
    ["--no-trust-remote-code"],
    ["--no-headless"],
    ["--max-num-seqs"],
    ["--enable"],
    ["-tp=2"],
    ["-tp2"],
    ["-qfp8"],
    ["--cudagraph-capture-sizes"],
    ["--hf-token"],
    ["--hf-token", "abc"],
    ["--rope-scaling", "{}"],
]
FILES = [
    "model: MODEL\nmax-model-len: 4096\nenable-chunked-prefill: false\n",
    "max_model_len: 4096\nserved-model-name: [a, b]\nenforce-eager: true\n",
    "speculative-config:\n  method: ngram\n  num_speculative_tokens: 2\n  prompt_lookup_max: 3\nmax-num-seqs: 8\n",
    "port: 8001\nno-enable-prefix-caching: true\ncudagraph-capture-sizes: [1, 2, 4]\ntensor-parallel-size: 1\n",
    "model: MODEL\nenable-prefix-caching: false\nmax-num-batched-tokens: 16k\nquantization: null\n",
]
CONFIG_FIELDS = {
    "max_model_len": "model_config.max_model_len",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "async_scheduling": "scheduler_config.async_scheduling",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "gpu_memory_utilization": "cache_config.gpu_memory_utilization",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "enforce_eager": "model_config.enforce_eager",
}


def command_lines(count: int, seed: int) -> list[dict[str, Any]]:
    """Generated command lines: correct, abbreviated, respelled, repeated and wrong ones."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = []
    for number in range(count):
        parts: list[list[str]] = []
        for option in rng.sample(list(VALUES), rng.randint(1, 5)):
            calm = VALUES[option][: 2 if rng.random() < 0.6 else None]
            parts.append(_with_value(rng, option, rng.choice(calm)))
        for option in rng.sample(SWITCHES, rng.randint(0, 3)):
            parts.append([_respell(rng, option if rng.random() < 0.75 else f"--no-{option[2:]}")])
        if rng.random() < 0.25:
            for option, values in rng.sample(DOTTED, rng.randint(1, 3)):
                parts.append(_with_value(rng, option, rng.choice(values), respell=False))
        if rng.random() < 0.2:
            parts.append(list(rng.choice(ODD)))
        if rng.random() < 0.1:
            parts.append(list(rng.choice(parts)))
        rng.shuffle(parts)
        record: dict[str, Any] = {}
        if number % 8 == 3:
            record["config_file"] = rng.choice(FILES)
            parts.insert(rng.randint(0, len(parts)), ["--config", "CONFIG.yaml"])
        argv = [word for part in parts for word in part]
        where = rng.random()
        if where < 0.75 or "config_file" not in record:
            argv = ["MODEL", *argv] if where < 0.85 else [*argv, "--model", "MODEL"]
            argv = ["--model=MODEL", *argv[:-2]] if where > 0.95 and argv[-2:] == ["--model", "MODEL"] else argv
        found.append({"argv": argv, **record})
    return found


def _with_value(rng: random.Random, option: str, value: str, *, respell: bool = True) -> list[str]:
    name = _respell(rng, option) if respell else option
    if " " in value and option in ("--served-model-name", "--cudagraph-capture-sizes", "--api-key"):
        return [name, *value.split(" ")]
    return [f"{name}={value}"] if rng.random() < 0.3 and option.startswith("--") else [name, value]


def _respell(rng: random.Random, option: str) -> str:
    if not option.startswith("--"):
        return option
    draw = rng.random()
    if draw < 0.2:
        return "--" + option[2:].replace("-", "_")
    if draw < 0.3:
        return option[: max(8, len(option) - rng.randint(1, 6))]
    return option


def plain(value: Any) -> Any:
    """A value as JSON; dataclasses by the fields that differ from their defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        with contextlib.suppress(Exception):
            base = type(value)()
            names = [field.name for field in dataclasses.fields(value)]
            return {
                name: plain(getattr(value, name)) for name in names if getattr(value, name) != getattr(base, name, None)
            }
        return repr(value)
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str | int) else value.name
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


class Recorder:
    """vLLM's parser, as `vllm serve` builds it."""

    def __init__(self, folder: Path) -> None:
        make_arg_parser = import_module("vllm.entrypoints.launchers.cli_args").make_arg_parser
        parser_class = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
        self.folder = folder
        self.parser = parser_class(description="vLLM CLI")
        subparsers = self.parser.add_subparsers(required=False, dest="subparser")
        self.serve = make_arg_parser(subparsers.add_parser("serve"))
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(TINY))

    def record(self, line: dict[str, Any]) -> dict[str, Any]:
        """Parse, then build the engine's config where parsing worked."""
        argv = [self._there(word) for word in line["argv"]]
        if "config_file" in line:
            (self.folder / "CONFIG.yaml").write_text(self._there(line["config_file"]))
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
                args = self.parser.parse_args(["serve", *argv])
        except SystemExit:
            text = errors.getvalue()
            return {**line, "error": self._here(text[text.rfind("error:") + 7 :].strip())}
        except Exception as error:
            return {**line, "error": self._here(f"{type(error).__name__}: {error}"[:400])}
        if args.model_tag is not None:
            args.model = args.model_tag
        given = {
            name: plain(value)
            for name, value in vars(args).items()
            if name not in ("subparser", "model_tag", "config") and value != self.serve.get_default(name)
        }
        result = {**line, "args": json.loads(self._here(json.dumps(given)))}
        return {**result, **self._config(args)}

    def _config(self, args: Any) -> dict[str, Any]:
        engine_class = import_module("vllm.engine.arg_utils").AsyncEngineArgs
        usage = import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
        if str(args.model) != str(self.model):
            return {}
        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                engine = engine_class.from_cli_args(args)
                config = engine.create_engine_config(usage)
        except BaseException as error:
            return {"config_error": self._here(f"{type(error).__name__}: {error}")[:300]}
        values: dict[str, Any] = {}
        for name, path in CONFIG_FIELDS.items():
            value: Any = config
            for part in path.split("."):
                value = getattr(value, part)
            values[name] = plain(value)
        return {"config": values}

    def _there(self, text: str) -> str:
        return text.replace("MODEL", str(self.model)).replace("CONFIG.yaml", str(self.folder / "CONFIG.yaml"))

    def _here(self, text: str) -> str:
        return text.replace(str(self.model), "MODEL").replace(str(self.folder / "CONFIG.yaml"), "CONFIG.yaml")


def main() -> None:
    """Write the goldens."""
    out, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 480
    with tempfile.TemporaryDirectory() as name:
        recorder = Recorder(Path(name))
        lines = [recorder.record(line) for line in command_lines(count, seed=20261129)]
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    with out.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write(text.encode())
    print(len(lines), sum("args" in line for line in lines), sum("config" in line for line in lines), len(text))


if __name__ == "__main__":
    main()
