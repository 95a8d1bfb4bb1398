"""Les produits rapides sur CPU, et leur repli annoncé."""

import pytest
import torch
import torch.nn.functional as F

from minibatcher.model import linear
from minibatcher.model.linear import Linear


@pytest.mark.parametrize("bias", [False, True], ids=["sans-biais", "biais"])
@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 300])
def test_packed_product_is_the_product(rows, bias):
    torch.manual_seed(rows)
    weight, x = torch.randn(40, 24), torch.randn(rows, 24)
    b = torch.randn(40) if bias else None
    layer = Linear(weight.clone(), None if b is None else b.clone())
    assert layer.packed, "torch 2.13 sait ranger les poids : le repli ne doit pas servir en silence"
    torch.testing.assert_close(layer(x), F.linear(x, weight, b), rtol=1e-5, atol=1e-5)


def test_without_packing_it_says_so_and_stays_right(monkeypatch):
    monkeypatch.setattr(linear, "packing_available", lambda: False)
    weight, x = torch.randn(8, 5), torch.randn(3, 5)
    with pytest.warns(UserWarning, match="plus lent sur CPU"):
        layer = Linear(weight)
    assert not layer.packed
    assert torch.equal(layer(x), F.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_are_not_packed(dtype):
    weight, x = torch.randn(8, 5, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    layer = Linear(weight)
    assert not layer.packed
    assert torch.equal(layer(x), F.linear(x, weight))
