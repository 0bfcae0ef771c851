"""Why a request took as long as it did: its time by cause, and a sentence."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType

from headway.errors import ConfigError
from headway.report.words import counted


@dataclass(frozen=True, slots=True)
class RequestStory:
    """One request's end-to-end latency, split: the times add up to `e2el_s`.

    Args:
        queued_s: from arrival to the first step that it was part of. Of this, `queued_for_seats_s`,
            `queued_for_blocks_s` and `queued_for_budget_s` say what the head of the queue lacked meanwhile; the rest is
            waiting for the step under way.
        num_ahead: requests that waited when it came; `num_running` ran.
        prefill_s: from there to its first token.
        decode_s: its own decode steps.
        stalled_s: what others' prompts added to those steps.
        preempted_s: from losing its blocks to its next token.
    """

    request_id: str
    rank: int
    arrived_at: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_ahead: int
    num_running: int
    queued_s: float
    queued_for_seats_s: float
    queued_for_blocks_s: float
    queued_for_budget_s: float
    prefill_s: float
    decode_s: float
    stalled_s: float
    preempted_s: float
    num_preemptions: int
    ttft_s: float
    e2el_s: float

    @property
    def why(self) -> str:
        """The largest causes, in words."""
        waits = (
            (self.queued_for_seats_s, "waiting for a seat"),
            (self.queued_for_blocks_s, "waiting for KV blocks"),
            (self.queued_for_budget_s, "waiting behind other prompts for the step's tokens"),
        )
        reason = max(waits)[1] if max(waits)[0] > 0.5 * self.queued_s else "waiting for the step under way"
        causes = [
            (self.queued_s, f"{reason}, {self.num_ahead} ahead"),
            (self.prefill_s, f"prefilling {counted(self.num_prompt_tokens - self.num_cached_tokens, 'token')}"),
            (self.decode_s, f"decoding {counted(max(0, self.num_output_tokens - 1), 'token')}"),
            (self.stalled_s, "stalled by other prompts"),
            (self.preempted_s, f"preempted {counted(self.num_preemptions, 'time')}"),
        ]
        whole = self.e2el_s or 1.0
        told = [(seconds, text) for seconds, text in sorted(causes, reverse=True) if seconds > 0.05 * whole]
        return "; ".join(f"{seconds / whole:.0%} {text}" for seconds, text in told)


class StoryWriter:
    """Writes stories row by row, as CSV or JSON Lines by the file's name; a context manager.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._names = [field.name for field in fields(RequestStory)]
        try:
            self._file = self._path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
        self._csv = csv.writer(self._file, lineterminator="\n") if self._path.suffix == ".csv" else None
        if self._csv is not None:
            self._csv.writerow([*self._names, "why"])

    def write(self, story: RequestStory) -> None:
        """One row."""
        row = {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(story).items()}
        if self._csv is not None:
            self._csv.writerow([*row.values(), story.why])
        else:
            self._file.write(json.dumps(row | {"why": story.why}) + "\n")

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def __enter__(self) -> StoryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
