"""Makes examples/chat.csv: a small workload with the shape of chat traffic, from a seed.

python examples/make_trace.py
headway bench --trace examples/chat.csv --length-divisor 1 --load 0.7
"""

from __future__ import annotations

from pathlib import Path

from headway.workload import Generated, LogNormalLength, write_trace

CHAT = Generated(
    num_requests=60,
    requests_per_s=2.0,
    burstiness=0.7,
    prompt=LogNormalLength(median=120, sigma=0.9, maximum=900),
    output=LogNormalLength(median=40, sigma=0.6, maximum=160),
    seed=2,
)

if __name__ == "__main__":
    path = Path(__file__).with_name("chat.csv")
    print(f"{write_trace(path, CHAT.requests())} requests written to {path}")
