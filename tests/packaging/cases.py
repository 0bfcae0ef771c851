"""What each sub-command is asked in a clean environment, and what it must say there."""

from __future__ import annotations

from dataclasses import dataclass

_DEPLOYMENT = "--model llama-3.1-8b --gpu l40s --max-model-len 8192"
_SICK = "{examples}/sick-server"
_WORKLOAD = """{"config": {"max_num_batched_tokens": 64, "num_blocks": 100},
 "requests": [{"id": "r0", "arrival_step": 0, "prompt_token_ids": [1, 2, 3], "max_tokens": 5}]}"""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line without the word `headway`, and a pattern that its output must have.

    Args:
        line: as a shell splits it; {examples} is the folder of examples.
        says: a regular expression, searched in standard output, or in standard error where it fails.
        code: its exit code. 2 is a mistake of the user's: one line, no traceback.
    """

    line: str
    says: str
    code: int = 0
    stdin: str = ""


BARE = (
    Case("--version", r"^headway \d[\s\S]*pip install 'headway\[serve\]'"),
    Case("--help", "Run a model here"),
    Case(f"simulate {_DEPLOYMENT} --num-prompts 40 --request-rate 5 --html report.html", "E2EL, ms"),
    Case(f"simulate {_DEPLOYMENT} --num-prompts 40 --concurrency 4 --json c4.json", "Results written to c4.json"),
    Case(f"simulate {_DEPLOYMENT} --num-prompts 20 --policy fast", "no batching policy 'fast'", 2),
    Case("plan llama-3.1-8b --gpu l40s", "fits on 1 × L40S"),
    Case("plan llama-3.3-70b --gpu l4", "does not fit on 1 × L4", 2),
    Case("plan --list-gpus", "H100-SXM5-80GB"),
    Case("fragmentation --num-prompts 100", "at completion"),
    Case(f"doctor {_SICK}/docker-compose.yml --gpu l40s --metrics {_SICK}/scrapes.prom --log {_SICK}/server.log",
         "max_num_seqs", 1),
    Case('doctor "vllm serve m --max-num-seqs 256" --observed running=256,waiting=251,kv=20.5% --json',
         '"waiting_queue_stall"', 1),
    Case(f"config {_SICK}/docker-compose.yml --all", "max_num_seqs +24"),
    Case('config "vllm serve llama-3.1-8b --max-num-seqs 64" --gpu l40s --json', '"max_num_seqs"'),
    Case("config missing.yml", "Cannot read missing.yml", 2),
    Case("compat --matrix 0.18.0", "chunked_prefill"),
    Case(f"compat {_SICK}/docker-compose.yml --gpu l40s --from 0.18.0 --to 0.33.0", "Simulated: 512/128"),
    Case(f"calibrate {_DEPLOYMENT} --bench c4.json", "Written to headway-profile.json"),
    Case(f"simulate {_DEPLOYMENT} --num-prompts 20 --profile headway-profile.json", "calibrated roofline"),
    Case("validate no-such-folder", "no-such-folder", 2),
    Case("steplog -", '"scheduled"', stdin=_WORKLOAD),
    Case("completion bash", "_HEADWAY_COMPLETE"),
    Case("serve", r"needs [\w, ]+\. Install with: pip install 'headway\[serve\]'", 2),
    Case("serve --executor sim --model llama-3.1-8b --gpu l40s", r"pip install 'headway\[serve\]'", 2),
    Case("bench", r"needs torch.* Install with: pip install 'headway\[torch\]'", 2),
    Case("profile", r"pip install 'headway\[torch\]'", 2),
    Case("kernels build", r"pip install 'headway\[torch\]'", 2),
    Case(f"simulate {_DEPLOYMENT} --latency aiconfigurator", r"pip install 'headway\[aic\]'", 2),
)  # fmt: skip
"""With the wheel alone: no extras, no network. In this order, since some read what others wrote."""

WITH_A_MODEL = (
    Case("--version", r"torch \d"),
    Case("bench --num-prompts 4 --prompt-tokens 20 --output-tokens 8 --policies chunked --capacity 4 --json",
         '"output_throughput"'),
)  # fmt: skip
"""With the extras and the bundled model."""

SCRIPT = """
from headway import diagnose, judge, plan, simulate
assert simulate("llama-3.1-8b", "l40s", num_prompts=20, request_rate=5.0).summary["completed"] == 20
assert plan("llama-3.1-8b", "l4", max_model_len=8192).fits
assert judge("vllm serve m --max-num-seqs 8 --max-num-batched-tokens 4", engine_version="0.18.0")[0].verdict == "rejected"
assert diagnose("vllm serve m --max-num-seqs 256", observed=["running=256,waiting=251,kv=20.5%"]).fixes
"""  # noqa: E501
"""The README's calls that need no model."""
