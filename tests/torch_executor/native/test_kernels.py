"""Single kernels: exact where they compute in integers, and the same bits from every version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from headway.executors.torch.native import KernelEngine
from headway.executors.torch.native.memory import Arena
from tests.torch_executor.native.support import GROUP, fake_quantize, fake_quantize_weight, isas_here


@pytest.fixture(params=isas_here())
def engine(request: pytest.FixtureRequest) -> Iterator[KernelEngine]:
    """An engine on each instruction set."""
    made = KernelEngine(2, request.param)
    yield made
    made.close()


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _multiply(engine: KernelEngine, rows: Tensor, weight: Tensor) -> Tensor:
    return engine.multiply(rows, engine.pack(weight))


def test_quantisation_is_to_the_nearest_byte(engine: KernelEngine) -> None:
    """Bytes, scales and sums; a group of zeros has scale 0."""
    rows = _random(5, 96)
    rows[2, 32:64] = 0
    values, scales, sums = engine.quantize(rows)
    groups = rows.view(5, 3, GROUP)
    torch.testing.assert_close(scales, groups.abs().amax(-1) / 127, rtol=1e-6, atol=0)
    wide = values.view(5, 3, GROUP)
    assert wide.abs().max() == 127
    assert torch.equal(sums, wide.sum(-1, dtype=torch.int32))
    error = (wide * scales[..., None] - groups).abs()
    assert (error <= scales[..., None] * 0.5001).all()


@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 13, 64])
def test_product_is_that_of_quantised_matrices(engine: KernelEngine, num_rows: int) -> None:
    """Every height of tile, and a number of outputs that fills no panel."""
    rows, weight = _random(num_rows, 160), _random(77, 160, seed=1)
    products = _multiply(engine, rows, weight)
    expected = fake_quantize(rows).double() @ fake_quantize_weight(weight).double().T
    torch.testing.assert_close(products[:, :77].double(), expected, rtol=1e-5, atol=1e-4)
    assert not products[:, 77:].any(), "outputs that do not exist"


def test_large_products_do_not_saturate(engine: KernelEngine) -> None:
    """All bytes at their limits, of equal and of opposite sign."""
    weight = torch.tensor([3.0, -3.0]).repeat(32, 32)
    for rows in (weight[:3].clone(), -weight[:3], weight[:3].abs()):
        expected = (rows.double() @ weight.double().T).float()
        torch.testing.assert_close(_multiply(engine, rows, weight), expected, rtol=1e-5, atol=1e-3)


def test_weights_of_sixteen_levels_are_exact(engine: KernelEngine) -> None:
    """As 4-bit files have them: an offset and a step for every 32, anywhere; a group that is constant as well."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 16, (32, 2, GROUP), generator=generator).float()
    levels[:, :, :2] = torch.tensor([0.0, 15.0])
    weight = (_random(32, 2, 1) + levels * _random(32, 2, 1, seed=1).abs()).view(32, 64)
    weight[0, :32] = 0.25
    rows = torch.randint(-127, 128, (4, 64), generator=generator).float()
    rows[:, ::GROUP] = 127
    torch.testing.assert_close(_multiply(engine, rows, weight), rows @ weight.T, rtol=1e-5, atol=2e-3)


def _four_bit(kind: str) -> Tensor:
    """Weights [70, 96] as a 4-bit file has them: multiplied out from halves and levels of 0 to 15."""
    generator = torch.Generator().manual_seed(len(kind))
    levels = torch.randint(0, 16, (70, 3, GROUP), generator=generator).float()
    scales = _random(70, 3, 1, seed=1).abs().half().float() * 0.01
    scales = scales.half().float()
    if kind == "symmetric":
        return ((levels.clamp(2, 13) - 8) * scales).view(70, 96)
    if kind == "few levels":
        levels = levels.clamp(5, 9)
    offsets = _random(70, 3, 1, seed=2).half().float()
    scales[0] = 0
    return (offsets + scales * levels).view(70, 96)


@pytest.mark.parametrize("kind", ["offset", "symmetric", "few levels"])
def test_four_bit_weights_take_half_a_byte_and_lose_nothing(engine: KernelEngine, kind: str) -> None:
    """Whatever levels a group uses; activations that are whole bytes make the product exact but for rounding."""
    weight = _four_bit(kind)
    rows = torch.randint(-127, 128, (7, 96), generator=torch.Generator().manual_seed(0)).float()
    rows[:, ::GROUP] = 127
    packed = engine.pack(weight)
    assert packed.num_levels == 16
    assert len(packed.panels) == 3 * 3 * (32 * 16 + 32 * 4)
    products = engine.multiply(rows, packed)[:, :70]
    torch.testing.assert_close(products.double(), rows.double() @ weight.double().T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("spoilt", [(1, 0), (69, 95)])
def test_one_weight_off_the_levels_is_enough_for_256(engine: KernelEngine, spoilt: tuple[int, int]) -> None:
    """Exactness is checked weight by weight."""
    weight = _four_bit("offset")
    weight[spoilt] += 0.001
    assert engine.pack(weight).num_levels == 256


@pytest.mark.parametrize("num_rows", [1, 6, 8, 30])
def test_versions_give_the_same_bits_of_four_bit_weights(num_rows: int) -> None:
    """Gated and not, for few rows and many."""
    rows, weight = _random(num_rows, 96) * 3, _four_bit("offset")[:64]
    for gated in (False, True):
        results = []
        for isa in isas_here():
            made = KernelEngine(1, isa)
            results.append(made.multiply(rows, made.pack(weight, gated=gated)))
            made.close()
        assert all(torch.equal(result, results[0]) for result in results)


def test_memory_of_weights_is_aligned_and_zero() -> None:
    """Pieces of a chunk, and one that is larger than a chunk."""
    arena = Arena(1000)
    pieces = [arena.take(size) for size in (1, 64, 500, 5000, 10)]
    assert [len(piece) for piece in pieces] == [1, 64, 500, 5000, 10]
    assert not any(piece.data_ptr() % 64 for piece in pieces)
    assert not any(piece.any() for piece in pieces)
    for index, piece in enumerate(pieces):
        piece.fill_(index)
    assert all((piece == index).all() for index, piece in enumerate(pieces)), "pieces overlap"


def test_a_row_does_not_depend_on_its_neighbours(engine: KernelEngine) -> None:
    """To the bit, in any position of a batch of any size."""
    rows, weight = _random(40, 96), _random(64, 96, seed=1)
    everything = _multiply(engine, rows, weight)
    for index in (0, 5, 6, 39):
        assert torch.equal(_multiply(engine, rows[index : index + 1].clone(), weight)[0], everything[index])
    rows[1:] *= 1000
    assert torch.equal(_multiply(engine, rows, weight)[0], everything[0])


def test_versions_give_the_same_bits() -> None:
    """AVX-512, AVX2 and portable, as far as this machine has them."""
    rows, weight = _random(20, 1536) * 5, _random(576, 1536, seed=1)
    results = []
    for isa in isas_here():
        engine = KernelEngine(1, isa)
        results.append(_multiply(engine, rows, weight))
        engine.close()
    assert all(torch.equal(result, results[0]) for result in results)
