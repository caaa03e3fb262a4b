"""An attention that takes only half precision trains under autocast; what runs outside of it uses `sdpa`."""

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from csezoo.training.files import read_json
from tests.methods import run_keys
from tests.training.runs import train

NAME = "half_only"  # transformers looks for a package if a name has "flash" in it


def half_only(module, query, *others, **options):
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *others, **options)


ALL_ATTENTION_FUNCTIONS.register(NAME, half_only)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


@pytest.mark.parametrize("method", ["simcse", pytest.param("diffaug", marks=pytest.mark.slow)])
def test_flash_attention_trains_and_is_evaluated(tiny, method, bases, tmp_path, triplets):
    train(tiny(**run_keys(method, bases["bert"], triplets) | {"attn_implementation": NAME, "mixed_precision": "bf16"}))
    assert read_json(tmp_path / "run" / "results.json")["training"]["dev"] is not None
