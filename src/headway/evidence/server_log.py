"""An engine's log, read once from front to back in bounded memory, however long it is."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample
from headway.evidence.files import line_chunks, whole_lines
from headway.evidence.log_clock import LogClock
from headway.evidence.log_lines import MAX_TEXT, START_UP, Event, Stats, plain, read_event, read_stats, read_v0_hits

MAX_SAMPLES = 20_000
"""Of each engine in each part; beyond, every second sample is dropped, again and again."""
MAX_EVENTS = 200
"""Of each kind from a part's beginning, and as many from its end."""
MAX_START_UP_BYTES = 1 << 18
"""Of each part, kept for readers of start-up logs."""
MAX_PARTS = 32
"""A server that is started again and again has a part for each time."""
_GAP_S = 5.0
"""Least time between samples made from SGLang's prefill lines, of which there is one a batch."""

_MARKERS = (
    b"throughput: ", b" batch", b"cceptance", b"reempt", b"etract", b"emory", b"illed", b"ERROR", b"CRITICAL", b"FATAL",
    b"Error", b" died", b"JIT", b"xception", b"LoRA", b"rate: GPU", b"ersion ", b"nitializing a", b"Started server",
    b"args", b"weights", b"loading took", b"blocks: ", b"KV cache s", b"KV Cache", b"KV cache (", b"oncurrency",
    b"num_tokens", b"model len", b"Graph capturing", b"block size", b"mem_fraction", b"batched_tokens", b"cache_config",
)  # fmt: skip
"""A line without one of these tells nothing about an engine. Short and few: each is searched for in all of the log."""
_START_UP = re.compile(
    rb"version v?\d|Initializing an? |Started server process|server_args=|non-default args|args: Namespace|"
    rb"model weights|[Mm]odel loading took|emory profiling|blocks: |KV [Cc]ache|Maximum concurrency|"
    rb"max_total_num_tokens|model len|max_num_batched_tokens|Graph capturing|CUDA graph memory|block size|"
    rb"Free memory on device|gpu_memory_utilization|mem_fraction_static|cache blocks|kv_cache_dtype|cache_config_info"
)
_TOO_MANY = 5_000
"""From so many events of a kind on, only every 64th line of it is looked at."""
_ENGINE = re.compile(rb"Engine (\d{1,6}): |\bDP(\d{1,6})\b")
_TOKENS = re.compile(rb"#new-token: (\d{1,9}), #cached-token: (\d{1,9})")
_COMMENT = re.compile(rb"(?m)^#[^\n]*")
_CONTAINER = re.compile(r"^(?:([\w.-]{1,80})\s+\| |\[pod/([\w./-]{1,200})\] )")


@dataclass(slots=True)
class _Engine:
    """Samples of one engine, thinned as they come."""

    samples: list[EngineSample] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    num_preemptions: float | None = None
    num_prefills: int = 0
    new_tokens: float = 0.0
    cached_tokens: float = 0.0
    since_s: float | None = None

    def add(self, sample: EngineSample) -> None:
        if self.seen % self.stride == 0:
            self.samples.append(sample)
            if len(self.samples) > MAX_SAMPLES:
                del self.samples[1::2]
                self.stride *= 2
        self.seen += 1


@dataclass(slots=True)
class LogPart:
    """What one server said between two of its starts.

    `start_up` holds the lines about its start, for readers of those.
    """

    source: str
    label: str = ""
    clock: LogClock = field(default_factory=LogClock)
    engines: dict[str, _Engine] = field(default_factory=dict)
    first_events: dict[str, list[EngineEvent]] = field(default_factory=dict)
    last_events: dict[str, deque[EngineEvent]] = field(default_factory=dict)
    num_events: dict[str, int] = field(default_factory=dict)
    start_up: list[str] = field(default_factory=list)
    start_up_bytes: int = 0
    generation: str | None = None
    is_sglang: bool = False

    @property
    def samples(self) -> tuple[EngineSample, ...]:
        """In order of time, engine by engine."""
        return tuple(sample for engine in self.engines.values() for sample in engine.samples)

    @property
    def events(self) -> tuple[EngineEvent, ...]:
        """In order of their lines."""
        kept = [*self.first_events.values(), *self.last_events.values()]
        return tuple(sorted((event for events in kept for event in events), key=lambda event: event.line))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read from it."""
        return not (self.engines or self.num_events or self.start_up)

    def add_event(self, event: EngineEvent) -> None:
        """Keep it, or let it push out one from the middle."""
        self.num_events[event.kind] = self.num_events.get(event.kind, 0) + 1
        first = self.first_events.setdefault(event.kind, [])
        if len(first) < MAX_EVENTS:
            first.append(event)
        else:
            self.last_events.setdefault(event.kind, deque(maxlen=MAX_EVENTS)).append(event)


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A log's parts, one a server or start, and what could not be used of it."""

    parts: tuple[LogPart, ...]
    facts: EngineFacts
    notes: tuple[str, ...]
    num_lines: int

    @property
    def samples(self) -> tuple[EngineSample, ...]:
        """Of all parts, in order."""
        return tuple(sample for part in self.parts for sample in part.samples)

    @property
    def events(self) -> tuple[EngineEvent, ...]:
        """Of all parts, in order."""
        return tuple(event for part in self.parts for event in part.events)

    @property
    def start_up_text(self) -> str:
        """Every line about a start, in order."""
        return "\n".join(line for part in self.parts for line in part.start_up)


def read_server_log(path: Path) -> ServerLog:
    """Read a log file.

    Raises:
        InputError: the file does not exist, cannot be read, or is binary.
    """
    return _read(path.name, line_chunks(path))


def read_server_log_text(text: str, source: str = "log") -> ServerLog:
    """The same from a text."""
    return _read(source, whole_lines((text.encode("utf-8", errors="replace"),)))


def _read(source: str, chunks: Iterable[bytes]) -> ServerLog:
    reader = _Reader(source)
    line = 1
    for chunk in chunks:
        for start, end in _worth_reading(chunk):
            line += chunk.count(b"\n", reader.position, start)
            reader.position = start
            reader.take(chunk[start:end], line)
        line += chunk.count(b"\n", reader.position)
        reader.position = 0
    return reader.finish(line - 1)


def _worth_reading(chunk: bytes) -> Iterator[tuple[int, int]]:
    """Where the lines lie that may tell something."""
    found: dict[int, int] = {}
    for marker in _MARKERS:
        position = chunk.find(marker)
        while position >= 0:
            end = chunk.find(b"\n", position)
            end = len(chunk) if end < 0 else end
            found[chunk.rfind(b"\n", 0, position) + 1] = end
            position = chunk.find(marker, end)
    if b"#" in chunk:
        found |= {match.start(): match.end() for match in _COMMENT.finditer(chunk)}
    return iter(sorted(found.items()))


class _Reader:
    """State while a log is read: the current part of each container, and the last error."""

    def __init__(self, source: str) -> None:
        self.position = 0
        self._source = source
        self._parts: list[LogPart] = []
        self._current: dict[str, LogPart] = {}
        self._label: str | None = None
        self._error: tuple[LogPart, int] | None = None
        self._num_dropped = 0

    def take(self, raw: bytes, line: int) -> None:
        """Use one line."""
        if self._skips(raw):
            return
        text = plain(raw.decode("utf-8", errors="replace"))
        if text.startswith("#"):
            self._label = text.lstrip("# ")[:100]
            self._current.clear()
            return
        match = _CONTAINER.match(text)
        container = (match[1] or match[2]) if match else ""
        part = self._part(container)
        if (stats := read_stats(text)) is not None:
            self._add(part, stats, part.clock.at(text, line))
            return
        if START_UP.search(text):
            part = self._start(part, container, text, line)
        at_s = part.clock.at(text, line)
        if (hits := read_v0_hits(text)) is not None:
            _amend(part, hits)
            return
        event = read_event(text)
        if event is not None:
            self._add_event(part, event, at_s, line, text)
        if event is None or event.kind == "error":
            _keep_start_up(part, text, raw)

    def _skips(self, raw: bytes) -> bool:
        """Lines that thinning would drop anyway are only counted; without this a long log takes minutes."""
        part = self._current.get("")
        if part is None or len(self._current) > 1:
            return False
        if b"ERROR" in raw and (count := part.num_events.get("error", 0)) > _TOO_MANY and count % 64:
            part.num_events["error"] = count + 1
            return True
        is_prefill = b"Prefill batch" in raw
        if not is_prefill and b"Avg prompt throughput: " not in raw and b"Decode batch" not in raw:
            return False
        match = _ENGINE.search(raw)
        engine = part.engines.get(str(int(match[1] or match[2])) if match else "0")
        if engine is None or engine.stride == 1:
            return False
        if is_prefill and (tokens := _TOKENS.search(raw)):
            engine.num_prefills += 1
            if engine.num_prefills % 16:
                engine.new_tokens += int(tokens[1])
                engine.cached_tokens += int(tokens[2])
                return True
        if is_prefill or engine.seen % engine.stride == 0 or b"Preemptions: " in raw:
            return False
        engine.seen += 1
        return True

    def finish(self, num_lines: int) -> ServerLog:
        """Everything, with notes."""
        parts = tuple(part for part in self._parts if not part.is_empty)
        notes = tuple(note for part in parts for note in _notes(part))
        if self._num_dropped:
            kept = (
                f"of {self._num_dropped + len(parts)} servers or starts the first and the last {MAX_PARTS - 1} are used"
            )
            notes = (f"{self._source}: {kept}.", *notes)
        if not parts:
            notes = (f"{self._source}: no line of vLLM or SGLang was recognised in {num_lines} lines.",)
        return ServerLog(parts, _facts(parts), notes, num_lines)

    def _part(self, container: str) -> LogPart:
        part = self._current.get(container)
        return part if part is not None else self._new_part(container)

    def _new_part(self, container: str) -> LogPart:
        words = [word for word in (container, self._label) if word]
        number = self._num_dropped + sum(1 for part in self._parts if not part.is_empty) + 1
        source = self._source if number == 1 and not container else f"{self._source}, part {number}"
        if len(self._parts) >= MAX_PARTS:
            self._num_dropped += 1
            del self._parts[1]
        part = LogPart(f"{source} ({', '.join(words)})" if words else source, self._label or "")
        self._parts.append(part)
        self._current[container] = part
        return part

    def _start(self, part: LogPart, container: str, text: str, line: int) -> LogPart:
        """A start after work was seen is a restart: what follows is a part of its own."""
        if not part.engines and "error" not in part.num_events:
            return part
        at_s = part.clock.at(text, line)
        new = self._new_part(container)
        new.add_event(EngineEvent("restart", 0.0, line, text[:MAX_TEXT], {"after_s": at_s or 0.0}, new.source))
        return new

    def _add_event(self, part: LogPart, event: Event, at_s: float | None, line: int, text: str) -> None:
        if event.kind == "error" and self._continues(part, line, text):
            return
        part.add_event(EngineEvent(event.kind, at_s, line, text[:MAX_TEXT], event.fields, part.source))
        if "group" in event.fields:
            part.generation = "V0"
        if event.kind == "preemption" and event.fields.get("mode") == "retract":
            engine = part.engines.setdefault("0", _Engine())
            engine.num_preemptions = (engine.num_preemptions or 0.0) + float(event.fields.get("count", 0.0))

    def _continues(self, part: LogPart, line: int, text: str) -> bool:
        """Whether an error line belongs to the error of the line before: a traceback is one error."""
        before, self._error = self._error, (part, line)
        if before is None or before[0] is not part or line - before[1] > 1:
            return False
        events = part.last_events.get("error") or part.first_events["error"]
        last = events[-1]
        fields = {**last.fields, "last_line": text[:MAX_TEXT]}
        if (event := read_event(text)) is not None:
            fields |= event.fields
        events[-1] = EngineEvent(last.kind, last.at_s, last.line, last.text, fields, last.source)
        return True

    def _add(self, part: LogPart, stats: Stats, at_s: float | None) -> None:
        engine = part.engines.setdefault(stats.engine, _Engine())
        part.generation = stats.generation or part.generation
        figures = dict(stats.figures)
        if stats.num_preempted is not None:
            engine.num_preemptions = (engine.num_preemptions or 0.0) + stats.num_preempted
        if stats.generation is None:
            part.is_sglang = True
            if not _sum_batches(engine, stats, at_s, figures):
                return
        engine.add(
            EngineSample(
                at_s=at_s,
                engine=stats.engine,
                num_preemptions=engine.num_preemptions,
                source=part.source,
                **figures,
            )
        )


def _sum_batches(engine: _Engine, stats: Stats, at_s: float | None, figures: dict[str, float]) -> bool:
    """SGLang tells prompt tokens by batch: a rate needs the time between samples. False: no sample yet."""
    is_prefill = stats.new_tokens is not None
    engine.new_tokens += stats.new_tokens or 0.0
    engine.cached_tokens += stats.cached_tokens
    elapsed = None if at_s is None or engine.since_s is None else at_s - engine.since_s
    if is_prefill and (elapsed is None or elapsed < _GAP_S) and engine.seen:
        return False
    if is_prefill:
        figures.pop("prompt_tokens_per_s", None)
    if elapsed:
        figures["prompt_tokens_per_s"] = engine.new_tokens / elapsed
    looked_up = engine.new_tokens + engine.cached_tokens
    if looked_up > 0.0:
        figures["prefix_hit_rate"] = engine.cached_tokens / looked_up
    if elapsed is None or elapsed > 0.0:
        engine.since_s = at_s
        engine.new_tokens = engine.cached_tokens = 0.0
    return True


def _amend(part: LogPart, hits: float) -> None:
    """V0 prints the hit rate on the line after the figures."""
    for engine in part.engines.values():
        if engine.samples:
            last = engine.samples[-1]
            values = {name: getattr(last, name) for name in EngineSample.__dataclass_fields__}
            engine.samples[-1] = EngineSample(**{**values, "prefix_hit_rate": hits})


def _keep_start_up(part: LogPart, text: str, raw: bytes) -> None:
    if part.start_up_bytes < MAX_START_UP_BYTES and _START_UP.search(raw):
        part.start_up.append(text)
        part.start_up_bytes += len(raw)


_VERSION = re.compile(r"(?:LLM engine \(v|API server version |vLLM version |\] version )v?(\d+\.\d+\.\d+[\w.+]*)")
_MAX_RUNNING = re.compile(r"\bmax_running_requests=(\d{1,9})")
_CONTEXT = re.compile(r"\bcontext_len=(\d{1,9})")
_CACHING = re.compile(r"\benable_prefix_caching=(True|False)")


def _facts(parts: tuple[LogPart, ...]) -> EngineFacts:
    """What the last start says of itself; what start-up logs say of memory is left to their reader."""
    if not parts:
        return EngineFacts()
    version = max_running = length = caching = None
    for text in (text for part in parts for text in part.start_up):
        if match := _VERSION.search(text):
            version = match[1].rstrip(".")
        if match := _MAX_RUNNING.search(text):
            max_running = int(match[1])
        if match := _CONTEXT.search(text):
            length = int(match[1])
        if match := _CACHING.search(text):
            caching = match[1] == "True"
    is_sglang = any(part.is_sglang for part in parts)
    generations = [part.generation for part in parts if part.generation]
    is_known = is_sglang or bool(generations) or version is not None
    return EngineFacts(
        engine=("sglang" if is_sglang else "vllm") if is_known else None,
        generation=generations[-1] if generations else None,
        version=version,
        max_model_len=length,
        max_num_seqs=max_running,
        enable_prefix_caching=caching,
        num_engines=max([1, *(len(part.engines) for part in parts)]),
    )


def _notes(part: LogPart) -> Iterator[str]:
    back = [(line, step) for line, step in part.clock.jumps if step < 0.0]
    ahead = [(line, step) for line, step in part.clock.jumps if step > 0.0]
    if back:
        line, step = back[0]
        more = f", and {len(back) - 1} times more" if len(back) > 1 else ""
        yield (
            f"{part.source}: the clock goes back by {-step:,.0f} s at line {line}{more}; time is taken to stand still "
            "there, and rates across it are not used."
        )
    if ahead:
        line, step = ahead[0]
        yield f"{part.source}: the time leaps ahead by {step / 3600:,.1f} h at line {line}: idle, or the clock was set."
    for name, engine in part.engines.items():
        if engine.stride > 1:
            yield (f"{part.source}: of {engine.seen:,} samples of engine {name} every {engine.stride}th is kept.")
        if engine.samples and all(sample.at_s is None for sample in engine.samples):
            yield f"{part.source}: the lines of engine {name} have no time."
    for kind, count in part.num_events.items():
        if count > 2 * MAX_EVENTS:
            yield f"{part.source}: of {count:,} {kind} lines the first and last {MAX_EVENTS} are kept."
