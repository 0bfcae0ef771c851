"""Tables: interpolation between measured points, the layouts that are read, and steps put together from parts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from headway.catalog import find_model
from headway.errors import ConfigError, InputError
from headway.executors.simulated.interpolation import Curve, Grid
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape
from headway.executors.simulated.table import Collective, StepTable, TableOracle
from headway.executors.simulated.table_files import find_table, read_steps, read_table
from tests.shared_data import shared_path


class TestInterpolation:
    """Exact at measured points, linear between, sensible beyond."""

    def test_curve(self) -> None:
        """Below the first point the value stays."""
        curve = Curve({1: 10.0, 4: 40.0, 8: 50.0})
        assert [curve(x) for x in (0, 1, 2, 4, 6, 8)] == [10.0, 10.0, 20.0, 40.0, 45.0, 50.0]

    def test_beyond_the_end_the_upper_half_decides(self) -> None:
        """A last pair that falls by noise must not make large batches cheap."""
        curve = Curve({100: 100.0, 190: 201.0, 200: 200.0})
        assert curve(300) == pytest.approx(300.0)
        assert Curve({1: 5.0, 2: 4.0})(100) == 4.0

    def test_one_point_is_a_constant(self) -> None:
        """Nothing else is known."""
        assert Curve({7: 3.0})(1000) == 3.0

    def test_grid_is_linear_along_each_axis(self) -> None:
        """x + 10 y is reproduced everywhere."""
        grid = Grid({(x, y): float(x + 10 * y) for x in (0, 4, 16) for y in (1, 3)})
        assert grid.at(10, 2) == pytest.approx(30.0)
        assert grid.along_last(10)(2) == pytest.approx(30.0)

    def test_grid_need_not_be_full(self) -> None:
        """Each branch has its own points on the next axis."""
        grid = Grid({(0, 0): 0.0, (0, 10): 10.0, (2, 0): 2.0, (2, 5): 7.0, (2, 10): 12.0})
        assert grid.at(1, 5) == pytest.approx(6.0)
        assert grid.along_last(1)(5) == pytest.approx(6.0)

    def test_a_shortcut_equals_the_long_way(self) -> None:
        """`along_last` is `at` with the last coordinate open, at measured points and between those of either side."""
        grid = Grid({(0, n, 0, kv): n * (3.0 + kv * 0.01) for n in (1, 8, 64) for kv in (16, 256, 4096)})
        for n in (1, 5, 20, 64, 100):
            curve = grid.along_last(0, n, 0)
            for kv in (1, 16, 100, 3000, 9000):
                assert curve(kv) == pytest.approx(grid.at(0, n, 0, kv))


def table(**changes: object) -> StepTable:
    """Dense 1 ms a 100 rows; attention of chunks, decodes, and both together, which costs 5 ms more."""
    points: dict[tuple[int, ...], float] = {}
    for chunk in (16, 1024):
        for past in (0, 1024):
            for n in (0, 1, 64):
                for kv in (16, 1024) if n else (0,):
                    extra = 5e-3 if n else 0.0
                    points[(chunk, n, past, kv)] = chunk * 1e-5 + past * 1e-6 + n * kv * 1e-7 + extra
    points |= {(0, n, 0, kv): n * kv * 1e-7 for n in (1, 64) for kv in (16, 1024)}
    fields: dict[str, object] = {
        "name": "test",
        "dense": Curve({100: 1e-3, 200: 2e-3, 1000: 10e-3}),
        "head": Curve({1: 1e-3, 64: 2e-3}),
        "attention": Grid(points),
        "is_mixed": True,
        "min_chunk": 16,
    }
    return StepTable(**(fields | changes))  # type: ignore[arg-type]


class TestOracle:
    """A step from its parts."""

    def test_decodes(self) -> None:
        """Dense rows, attention at the mean context, the head."""
        time = TableOracle(table(), step_s=1e-3).step_time(decode_shape(64, 64 * 500))
        assert time.device_s == pytest.approx(1e-3 + 64 * 500 * 1e-7 + 2e-3 + 1e-3)
        assert time.host_s == 0.0

    def test_decodes_beside_a_chunk_cost_what_they_add_to_it(self) -> None:
        """The mixed kernel is slower than its parts: 5 ms here."""
        oracle = TableOracle(table())
        shape = StepShape((Chunk(100, 0),), 10, 10, 5000, 11)
        expected = 100 * 1e-5 + 10 * 500 * 1e-7 + 5e-3
        assert oracle.step_time(shape).device_s == pytest.approx(
            table().dense(110) + table().head(11) + expected, rel=1e-9
        )

    def test_two_chunks_are_each_priced_by_themselves(self) -> None:
        """Attention is quadratic in one prompt, not in the step's tokens."""
        squares: dict[tuple[int, ...], float] = {(0, 1, 0, 16): 0.0}
        for chunk in (16, 64, 128, 256):
            squares[(chunk, 0, 0, 0)] = float(chunk * chunk)
        oracle = TableOracle(table(attention=Grid(squares), dense=Curve({1: 0.0}), head=Curve({1: 0.0})))
        shape = StepShape((Chunk(128, 0), Chunk(128, 0)), 0, 0, 0, 2)
        assert oracle.step_time(shape).device_s == pytest.approx(2 * 128.0**2)

    def test_batches_are_padded_to_graphs(self) -> None:
        """101 rows are executed as 200."""
        oracle = TableOracle(table(), graph_sizes=(100, 200))
        assert {part.name: part.seconds for part in oracle.explain(decode_shape(101, 1))}["linear"] == 2e-3

    def test_all_reduces(self) -> None:
        """Count × (latency + bytes over bandwidth)."""
        oracle = TableOracle(table(), collective=Collective(10, 1000.0, 1e-6, 1e9))
        parts = {part.name: part.seconds for part in oracle.explain(decode_shape(100, 100))}
        assert parts["all_reduce"] == pytest.approx(10 * (1e-6 + 100 * 1000 / 1e9))

    def test_parts_add_up(self) -> None:
        """`explain` is the price."""
        oracle = TableOracle(table(), step_s=1e-3, scale=1.5)
        shape = StepShape((Chunk(100, 50),), 3, 3, 900, 4)
        assert sum(part.seconds for part in oracle.explain(shape)) == pytest.approx(oracle.step_time(shape).device_s)

    def test_whole_steps_count_their_fixed_cost_once(self) -> None:
        """A profile of whole steps: two chunks are one of as many tokens, not two steps."""
        steps: dict[tuple[int, ...], float] = {
            (c, n, p, k): 1.0 + c for c in (1, 64) for n in (0, 1) for p in (0, 64) for k in ((16,) if n else (0,))
        }
        steps |= {(0, 1, 0, 16): 1.0}
        whole = table(attention=Grid(steps), dense=Curve({1: 0.0}), head=Curve({1: 0.0}), is_whole=True, min_chunk=1)
        shape = StepShape((Chunk(16, 0), Chunk(16, 0)), 1, 1, 16, 3)
        assert TableOracle(whole).step_time(shape).device_s == pytest.approx(33.0)


class TestFiles:
    """Layouts."""

    def test_llmservingsim(self) -> None:
        """32 layers of Llama 3.1 8B: two norms and all products a layer, the embedding once."""
        files = find_table(shared_path("kernel"), "RTX-PRO-6000-Server-96GB", "meta-llama/Llama-3.1-8B", 1)
        assert files is not None
        read = read_table(files, find_model("meta-llama/Llama-3.1-8B"))
        # 14 GB of layers over 1.79 TB/s are 7.8 ms.
        assert 8.5e-3 < read.dense(1) < 11.5e-3
        assert read.is_mixed and read.min_chunk == 16
        # 128 decodes at 1,024 read 17 GB: 9.6 ms.
        assert 9.6e-3 < read.attention.at(0, 128, 0, 1024) < 15e-3

    def test_experts(self) -> None:
        """More rows reach more experts; the table has both coordinates."""
        files = find_table(shared_path("kernel"), "RTX-PRO-6000-Server-96GB", "Qwen/Qwen3-30B-A3B-Instruct-2507", 1)
        assert files is not None
        read = read_table(files, find_model("Qwen/Qwen3-30B-A3B-Instruct-2507"))
        oracle = TableOracle(read)
        parts = [{part.name: part.seconds for part in oracle.explain(decode_shape(n, n))} for n in (1, 256)]
        assert parts[1]["experts"] > 3 * parts[0]["experts"] > 0

    def test_the_older_layout(self) -> None:
        """Nanoseconds a layer; prompts and decodes apart."""
        files = find_table(shared_path("kernel"), "H100-SXM5-80GB", "meta-llama/Llama-3.1-70B", 4)
        assert files is not None
        read = read_table(files, find_model("meta-llama/Llama-3.1-70B"))
        assert not read.is_mixed
        assert 10e-3 < read.dense(1) < 25e-3
        assert 1.5e-3 < read.attention.at(0, 64, 0, 1024) < 4e-3

    def test_another_gpu_has_none(self) -> None:
        """Names must match, not merely resemble."""
        assert find_table(shared_path("kernel"), "A100-SXM4-80GB", "meta-llama/Llama-3.1-8B", 1) is None

    def test_our_own(self, tmp_path: Path) -> None:
        """Whole steps; the first line tells the host time between steps."""
        path = tmp_path / "steps.csv"
        facts = json.dumps({"model": "tiny", "host_us": 250.0})
        path.write_text(
            f"# {facts}\nprefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,1000\n8,0,0,0,3000\n"
        )
        read, host_s = read_steps(path)
        assert host_s == pytest.approx(250e-6)
        assert read.is_whole and read.name == "profile of tiny"
        assert read.attention.at(0, 1, 0, 16) == pytest.approx(1e-3)

    def test_a_missing_column_is_named(self, tmp_path: Path) -> None:
        """So that the file can be put right."""
        path = tmp_path / "steps.csv"
        path.write_text("prefill_chunk,time_us\n1,1\n")
        with pytest.raises(InputError, match=r"kv_decode, kv_prefill, n_decode"):
            read_steps(path)

    def test_experts_without_a_table(self, tmp_path: Path) -> None:
        """A mixture cannot be priced by its dense layers alone."""
        stem = "x__RTXPRO6000__Qwen__Qwen3-30B-A3B__bf16__tp1__"
        rows = {
            "dense": "layer,tokens,time_us\nqkv_proj,1,1\n",
            "per_sequence": "layer,sequences,time_us\nlm_head,1,1\n",
            "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,1\n",
        }
        for kind, text in rows.items():
            with gzip.open(tmp_path / f"{stem}{kind}.csv.gz", "wt") as file:
                file.write(text)
        files = find_table(tmp_path, "RTX-PRO-6000-Server-96GB", "Qwen/Qwen3-30B-A3B", 1)
        assert files is not None
        with pytest.raises(ConfigError, match="experts"):
            read_table(files, find_model("Qwen/Qwen3-30B-A3B"))
