"""headway: an LLM serving engine whose scheduler also runs under a virtual clock.

Public names, imported when they are first used, so that `import headway` loads nothing heavy:

* `LLM`, `SamplingParams`: generate with a real model.
* `simulate`: predict a GPU deployment.
* `plan`: its memory.
* `judge`: its flags in one exact release of vLLM.
* `diagnose`: its bottleneck and the first thing to change, from its flags, metrics and logs.
* `Scheduler`, `SchedulerConfig`, `CacheConfig`: the scheduler itself, for studies of it.
* `HeadwayError`: the base of every error meant for a user.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.api import diagnose, judge, simulate
    from headway.config import CacheConfig, SchedulerConfig
    from headway.core.sampling import SamplingParams
    from headway.core.scheduler import Scheduler
    from headway.errors import HeadwayError
    from headway.frontends.llm import LLM
    from headway.planner import plan

__version__ = "0.1.0"

_HOMES = {
    "LLM": "headway.frontends.llm",
    "SamplingParams": "headway.core.sampling",
    "simulate": "headway.api",
    "plan": "headway.planner",
    "judge": "headway.api",
    "diagnose": "headway.api",
    "Scheduler": "headway.core.scheduler",
    "SchedulerConfig": "headway.config",
    "CacheConfig": "headway.config",
    "HeadwayError": "headway.errors",
}

__all__ = [
    "LLM",
    "CacheConfig",
    "HeadwayError",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "diagnose",
    "judge",
    "plan",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
