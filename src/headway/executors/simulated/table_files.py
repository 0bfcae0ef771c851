"""Reading kernel tables: the layouts of LLMServingSim (its current one and the one before), and our own."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.catalog.architecture import ExpertFeedForward, ModelArchitecture
from headway.errors import ConfigError, InputError
from headway.executors.simulated.interpolation import Curve, Grid
from headway.executors.simulated.table import StepTable

_ONCE = ("embedding", "final_layernorm")
_TWICE_A_LAYER = ("layernorm",)
_HEAD = ("lm_head", "sampler")
_ATTENTION_V0 = "attn"
STEPS_FILE = "steps.csv"
STEP_COLUMNS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one model on one device at one tensor-parallel size, by kind."""

    name: str
    files: Mapping[str, Path]
    unit_s: float


def find_table(folder: Path, gpu: str, model_id: str, tp: int) -> TableFiles | None:
    """The tables for a deployment, in the folder's file names; None where there are none.

    Names are `<origin>__<gpu>__<owner>__<model>__<dtype>__tp<n>__<kind>.csv[.gz]`; the older layout has no dtype.
    """
    wanted = (_plain(gpu), _plain(model_id.replace("/", "__")), f"tp{tp}")
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob("*__*.csv*")):
        words = re.sub(r"\.csv(\.gz)?$", "", path.name).split("__")
        if len(words) < 6 or words[-2] != wanted[2]:
            continue
        model = _plain("__".join(words[2:4]))
        if model == wanted[1] and (_plain(words[1]) in wanted[0] or wanted[0] in _plain(words[1])):
            found.setdefault(words[0], {})[words[-1]] = path
    for origin, kinds in found.items():
        if {"dense", "attention", "per_sequence"} <= set(kinds) or {"layers", "attention"} <= set(kinds):
            return TableFiles(f"{origin} {gpu} {model_id} tp{tp}", kinds, 1e-6 if "dense" in kinds else 1e-9)
    return None


def read_table(files: TableFiles, model: ModelArchitecture) -> StepTable:
    """Read tables of one layer into times of the whole model.

    Raises:
        InputError: a file cannot be read or lacks a column.
        ConfigError: the model needs a table that is not there.
    """
    return _read_current(files, model) if "dense" in files.files else _read_v0(files, model)


def read_steps(path: Path) -> tuple[StepTable, float]:
    """Our own layout (`headway profile`): whole steps by the same four coordinates, and the host time between steps.

    The first line may be a comment that holds a JSON object with `host_us`.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    points: dict[tuple[int, ...], float] = {}
    for row in _rows(path, STEP_COLUMNS):
        key = (int(row["prefill_chunk"]), int(row["n_decode"]), int(row["kv_prefill"]), int(row["kv_decode"]))
        points[key] = float(row["time_us"]) * 1e-6
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    facts = json.loads(first.removeprefix("#")) if first.startswith("#") else {}
    nothing = Curve({1: 0.0})
    name = str(facts.get("model") or path.stem)
    table = StepTable(
        f"profile of {name}", nothing, nothing, Grid(points), True, _smallest_chunk(points), is_whole=True
    )
    return table, float(facts.get("host_us", 0.0)) * 1e-6


def _read_current(files: TableFiles, model: ModelArchitecture) -> StepTable:
    layers = model.num_layers
    dense: dict[int, float] = {}
    for row in _rows(files.files["dense"], ("layer", "tokens", "time_us")):
        times = 1 if row["layer"] in _ONCE else layers * (2 if row["layer"] in _TWICE_A_LAYER else 1)
        tokens = int(row["tokens"])
        dense[tokens] = dense.get(tokens, 0.0) + times * float(row["time_us"]) * files.unit_s
    head: dict[int, float] = {}
    for row in _rows(files.files["per_sequence"], ("layer", "sequences", "time_us")):
        count = int(row["sequences"])
        head[count] = head.get(count, 0.0) + float(row["time_us"]) * files.unit_s
    points: dict[tuple[int, ...], float] = {
        (int(row["prefill_chunk"]), int(row["n_decode"]), int(row["kv_prefill"]), int(row["kv_decode"])): layers
        * float(row["time_us"])
        * files.unit_s
        for row in _rows(files.files["attention"], STEP_COLUMNS)
    }
    experts, ffn = _experts(files, model)
    return StepTable(
        files.name,
        Curve(dense),
        Curve(head),
        Grid(points),
        True,
        _smallest_chunk(points),
        experts,
        ffn.num_experts if ffn else 0,
        ffn.experts_per_token if ffn else 0,
    )


def _experts(files: TableFiles, model: ModelArchitecture) -> tuple[Grid | None, ExpertFeedForward | None]:
    routed = [(ffn, count) for ffn, count in model.ffn_counts.items() if isinstance(ffn, ExpertFeedForward)]
    if not routed:
        return None, None
    if "moe" not in files.files:
        raise ConfigError(f"{model.id} has experts, and {files.name} has no table of them.")
    ffn, count = routed[0]
    points: dict[tuple[int, ...], float] = {
        (int(row["tokens"]), int(row["activated_experts"])): count * float(row["time_us"]) * files.unit_s
        for row in _rows(files.files["moe"], ("tokens", "activated_experts", "time_us"))
    }
    return Grid(points), ffn


def _read_v0(files: TableFiles, model: ModelArchitecture) -> StepTable:
    """Layers in nanoseconds by input tokens; attention in milliseconds, prompts and decodes apart."""
    layers = model.num_layers
    dense: dict[int, float] = {}
    head: dict[int, float] = {}
    for row in _rows(files.files["layers"], ("layer_name", "input", "latency(ns)")):
        name, tokens, seconds = row["layer_name"], int(row["input"]), float(row["latency(ns)"]) * files.unit_s
        if name in _HEAD:
            head[tokens] = head.get(tokens, 0.0) + seconds
        elif name != _ATTENTION_V0:
            dense[tokens] = dense.get(tokens, 0.0) + seconds * (1 if name in _ONCE else layers)
    points: dict[tuple[int, ...], float] = {}
    for row in _rows(files.files["attention"], ("batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill")):
        size, kv = int(row["prefill_chunk_size"]), int(row["kv_cache_size"])
        if row["is_prefill"] == "True":
            seconds = float(row["time_stats.attn_prefill.median"]) * 1e-3
            points[(size, 0, max(0, kv - size), 0)] = layers * seconds
        else:
            seconds = float(row["time_stats.attn_decode.median"]) * 1e-3
            points[(0, int(row["batch_size"]), 0, kv)] = layers * seconds
    return StepTable(files.name, Curve(dense), Curve(head), Grid(points), False, _smallest_chunk(points))


def _smallest_chunk(points: Mapping[tuple[int, ...], float]) -> int:
    return min((key[0] for key in points if key[0] > 0), default=1)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            reader = csv.DictReader(line for line in file if not line.startswith("#"))
            missing = set(columns) - set(reader.fieldnames or ())
            if missing:
                raise InputError(f"{path} lacks the column(s) {', '.join(sorted(missing))}.")
            yield from reader
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
