"""LoRA and adapters as DiffAug's views: each row uses one set, the serving model uses their mean."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModel

from tests.methods.diffaug import diffaug
from tests.tiny import batch, one_view


class Adapted(nn.Module):
    """A linear layer with an adapter behind it."""

    def __init__(self, linear, down, up):
        super().__init__()
        self.linear, self.down, self.up = linear, down, up

    def forward(self, inputs):
        h = self.linear(inputs)
        return h + nn.functional.gelu(h @ self.down) @ self.up


def with_weights(model, shares):
    """The plain backbone with the modules of the views, by their shares, in its layers."""
    plain = copy.deepcopy(model.model.backbone)
    plain = AutoModel.from_config(plain.config).double().eval()
    plain.load_state_dict(model.model.backbone.state_dict(), strict=False)
    r, adapters = model.config.bottleneck, iter(model.model.view_adapters)
    for layer in plain.encoder.layer:
        if model.config.views_module == "adapter":
            places = [(layer.attention.output, "dense"), (layer.output, "dense")]
        else:
            places = [(layer.attention.self, "query"), (layer.attention.self, "value")]
        for parent, name in places:
            adapter, linear = next(adapters), getattr(parent, name)
            sets = [slice(v * r, (v + 1) * r) for v in range(2)]
            products = [(adapter.down.weight[own].T, adapter.up.weight[:, own].T) for own in sets]
            if model.config.views_module == "lora":
                added = sum(share * down @ up for share, (down, up) in zip(shares, products, strict=True))
                linear.weight.data += model.config.lora_scale * added.T
            else:
                down = torch.cat([down for down, _ in products], dim=1)
                up = torch.cat([share * up for share, (_, up) in zip(shares, products, strict=True)])
                setattr(parent, name, Adapted(linear, down, up))
    return plain


@pytest.mark.parametrize("views_module", ["lora", "adapter"])
def test_each_row_uses_its_set_of_lora_or_adapters(kind, views_module):
    model = diffaug(kind, views_module=views_module, bottleneck=3, lora_scale=1.5)
    rows = batch(views=3)
    together = model.pool_views(**rows)
    for view, shares in enumerate([(1, 0), (0, 1), (0, 1)]):
        own = {name: value[:, view] for name, value in rows.items()}
        alone = with_weights(model, shares)(**own).last_hidden_state[:, 0]
        torch.testing.assert_close(together[:, view], alone, atol=1e-12, rtol=0)
    served = model.serving_model()(**one_view(rows)).pooler_output
    mean = with_weights(model, (0.5, 0.5))(**one_view(rows)).last_hidden_state[:, 0]
    torch.testing.assert_close(served, mean, atol=1e-12, rtol=0)


def test_shares_end_with_the_forward_they_were_given_for():
    """Also when it fails: what the model gives next is the mean again."""
    model, ids = diffaug("bert", views_module="lora", bottleneck=3), torch.tensor([[2, 10, 11, 3]])
    adapters = model.model.view_adapters
    before = model.model.backbone(ids).last_hidden_state
    with pytest.raises(KeyboardInterrupt), adapters.shared(torch.tensor([[1.0, 0.0]])):
        assert not torch.allclose(model.model.backbone(ids).last_hidden_state, before)
        raise KeyboardInterrupt
    assert torch.equal(model.model.backbone(ids).last_hidden_state, before)
