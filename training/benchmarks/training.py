"""What a method's training costs beside the encoder passes that its mathematics needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, PreTrainedModel

from csezoo.modeling.modeling_contrastive import ForContrastiveLearning
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderPreTrainedModel

from ..environment import peak_device_bytes, peak_rss_bytes
from ..errors import UserError
from ..loop.building import build
from ..loop.precision import choose_precision, product_seconds
from ..loop.run_data import RunData
from ..loop.training_loop import on_device, plan_stages, start_stage, update
from ..recipes import Recipe
from .race import machine, race


@dataclass
class EncoderPass:
    """One call of an encoder, and what its result was differentiated by.

    Args:
        encoder: the module called.
        inputs: its arguments.
        prefixes: keys and values `(2, rows, heads, l, H / heads)` that each layer was given, if any.
        needs: `parameters`, a backward pass to the weights; `masks`, one that ends at the embedding layer's output and
            gives no weight a gradient; `nothing`, none.
    """

    encoder: nn.Module
    inputs: dict[str, Any]
    prefixes: list[tuple[torch.Tensor, torch.Tensor]]
    needs: str

    def run(self) -> None:
        """The same call again, and a backward pass from the first position of its last layer."""
        with torch.set_grad_enabled(self.needs != "nothing"):
            with embeddings_alone(self.encoder) if self.needs == "masks" else nullcontext():
                cache = {"past_key_values": DynamicCache(self.prefixes)} if self.prefixes else {}
                hidden = self.encoder(**self.inputs, **cache)[0]
                if self.needs != "nothing":
                    # Not a constant: its gradient through a layer norm would be zero throughout.
                    first = hidden[:, 0]
                    first.backward(torch.linspace(-1, 1, first.shape[-1]).to(first).expand_as(first))


@contextmanager
def embeddings_alone(encoder: nn.Module) -> Iterator[None]:
    """While it lasts, a backward pass through the encoder ends at what its embedding layer gave out."""
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    embeddings = encoder.get_submodule("embeddings")
    handle = embeddings.register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        handle.remove()
        for parameter in trained:
            parameter.requires_grad_()


def encoders(model: nn.Module) -> list[nn.Module]:
    """The transformers models inside a training model: backbone, twin, generator, discriminator."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        ours = isinstance(module, SentenceEncoderPreTrainedModel) or not isinstance(module, PreTrainedModel)
        if not ours and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = module
    return list(found.values())


def record_passes(model: nn.Module, run: Callable[[], object]) -> list[EncoderPass]:
    """Every encoder pass that `run` makes."""
    passes: list[EncoderPass] = []

    def record(encoder: nn.Module, arguments: tuple, inputs: dict[str, Any]) -> None:
        inputs = dict(inputs)
        cache = inputs.pop("past_key_values", None)
        layers = [] if cache is None else [(layer.keys, layer.values) for layer in cache.layers]
        prefixes = [tuple(tensor.detach().requires_grad_() for tensor in layer) for layer in layers]
        passes.append(EncoderPass(encoder, inputs, prefixes, "parameters" if torch.is_grad_enabled() else "nothing"))

    handles = [encoder.register_forward_pre_hook(record, with_kwargs=True) for encoder in encoders(model)]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return passes


def needed_passes(model: ForContrastiveLearning, batch: dict[str, Any]) -> list[EncoderPass]:
    """The encoder passes of one update, with what each is differentiated by.

    Example:
        >>> from transformers import BertConfig
        >>> from csezoo.modeling import L2PCSRConfig, L2PCSRForContrastiveLearning
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = L2PCSRForContrastiveLearning(L2PCSRConfig(backbone_config=tiny, inner_steps=2))
        >>> ids = torch.tensor([[[1, 2], [1, 2]], [[3, 4], [3, 4]]])  # 2 sentences, 2 views, 2 tokens
        >>> batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        >>> [made.needs for made in needed_passes(model, batch)]
        ['masks', 'masks', 'parameters']
    """
    passes = record_passes(model, lambda: model(**batch))
    views = [batch[name][:, : model.config.encoded_views] for name in ("input_ids", "attention_mask")]
    inner = record_passes(model, lambda: model.learn_views(*views))
    for made in passes[: len(inner)]:
        made.needs = "masks"
    return passes


class Updates:
    """A recipe's first contrastive updates, as a run makes them: batches from the data, passes, clipping, optimizer.

    Args:
        recipe: of any method.
        steps: updates; each `run` makes as many, over the same batches.

    Raises:
        UserError: the recipe cannot be trained, or fewer than one step.
    """

    def __init__(self, recipe: Recipe, steps: int):
        if steps < 1:
            raise UserError(f"steps: {steps} must be at least 1")
        self.recipe, self.steps = replace(recipe, max_steps=steps), steps
        self.accelerator = Accelerator(
            mixed_precision=choose_precision(recipe.mixed_precision),
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=recipe.gradient_accumulation_steps),
        )
        set_seed(recipe.seeds[0])
        self.built = build(self.recipe)
        self.built.model.to(self.accelerator.device)
        self.data = RunData(self.recipe, recipe.seeds[0], self.built, self.accelerator)
        self.stage = plan_stages(self.recipe, self.data)[-1]
        parts = start_stage(self.stage, self.recipe, self.built.model, self.accelerator)
        self.wrapped, self.optimizer, self.scheduler = parts
        self.wrapped.train()

    def batches(self) -> Iterator[dict[str, Any]]:
        accumulated = self.recipe.gradient_accumulation_steps
        return self.data.batches("contrastive", 0, self.steps * accumulated, before=self.stage.start * accumulated)

    def run(self) -> None:
        loader = self.batches()
        for _ in range(self.steps):
            losses, _ = update(self.wrapped, self.optimizer, loader, self.recipe, self.accelerator)
            self.scheduler.step()
            with torch.no_grad():
                self.built.model.after_update()
        losses["loss"].item()  # waits for the device


def benchmark_training(recipe: Recipe, *, steps: int = 5, repeats: int = 5) -> dict[str, object]:
    """Updates of the contrastive stage, as a run makes them, against the encoder passes in them alone.

    An update is the batch from the data, forward and backward pass, clipping, optimizer and schedule. Its encoder
    passes are recorded and made again by themselves on the same inputs: same padded tokens, same precision.

    Args:
        recipe: of any method.
        steps: updates a turn, over as many batches.
        repeats: turns.

    Returns:
        `race`'s figures, where `ratio` is the training overhead R; `floor`, R* of counted operations: those of an
        update to those of its passes; `passes` of an update, each with its rows and tokens; the batches' sentences and
        padded tokens, and each a second; operations a second, and their share of those a single large matrix product
        makes in this precision; the seconds that an epoch of 10^6 sentences would take; the peak memory of updates
        alone, of the GPU where there is one; the machine.

    Raises:
        UserError: the recipe cannot be trained, or fewer than one step or turn.
    """
    updates = Updates(recipe, steps)
    model, accelerator = updates.built.model, updates.accelerator
    batches = [on_device(batch, accelerator.device) for batch in updates.batches()]
    with accelerator.autocast():
        passes = [needed_passes(model, batch) for batch in batches]

    def run_passes() -> None:
        for one in passes:
            with accelerator.autocast():
                for encoder_pass in one:
                    encoder_pass.run()
            model.zero_grad()
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()

    updates.run()  # the first is slower than any other
    peak = peak_device_bytes() or peak_rss_bytes()
    counted = operations(updates.run)
    floor = counted / operations(run_passes)
    figures = race(updates.run, run_passes, repeats=repeats)
    seconds = figures["median"]["ours"]
    ids = [batch["input_ids"] for batch in batches]
    sentences, tokens = sum(map(len, ids)), sum(tensor.numel() for tensor in ids)
    return {
        "benchmark": "training",
        "recipe": recipe.recipe,
        "method": recipe.method,
        "precision": accelerator.mixed_precision,
        "batch_size": recipe.batch_size,
        "steps": steps,
        **figures,
        "floor": floor,
        "passes": [describe(made) for made in passes[0]],
        "sentences": sentences,
        "padded tokens": tokens,
        "sentences per second": sentences / seconds,
        "padded tokens per second": tokens / seconds,
        "operations per second": counted / seconds,
        "share of a matrix product's": counted / seconds / matmul_rate(accelerator),
        "seconds for 10^6 sentences": 1e6 / sentences * seconds,
        "peak bytes": peak,
        "machine": machine(),
    }


def operations(run: Callable[[], None]) -> int:
    """Floating-point operations of all matrix products in `run`, backward passes among them."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # fused attention is not counted
        run()
    return counter.get_total_flops()


def matmul_rate(accelerator: Accelerator) -> float:
    """Floating-point operations a second of one large matrix product in the run's precision, the best of five."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision, torch.float32)
    size = 8192 if accelerator.device.type == "cuda" else 1024
    left, right = torch.randn(2, size, size, device=accelerator.device, dtype=dtype)
    return 2 * size**3 / min(product_seconds(left, right) for _ in range(5))


def describe(made: EncoderPass) -> dict[str, object]:
    rows, tokens = made.inputs["input_ids"].shape
    return {"encoder": type(made.encoder).__name__, "needs": made.needs, "rows": rows, "tokens": tokens}
