"""Benchmarks of training: time and memory of optimizer steps against those of the encoder passes they need."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from csezoo.modeling.contrastive.packing import packed
from csezoo.modeling.contrastive.pretrained import SentenceEncoderPreTrainedModel
from csezoo.modeling.contrastive.training_model import ForContrastiveLearning
from csezoo.modeling.serving.encoder_layers_csezoo import PrefixCache, cache_argument

from ..environment import peak_device_bytes, peak_rss_bytes
from ..loop.building import build, choose_layout
from ..loop.precision import choose_precision, product_seconds
from ..loop.run_data import RunData
from ..loop.training_log import PADDING_TOKENS
from ..loop.training_loop import on_device, plan_stages, start_stage, update
from ..recipes import Recipe
from .race import race


@dataclass
class EncoderPass:
    """One call of an encoder, and the backward pass it needs."""

    encoder: nn.Module  # the module that was called
    inputs: dict[str, Any]  # the arguments of the call
    # keys and values `(2, rows, heads, l, H / heads)` of each layer, if the call had any
    prefixes: list[tuple[torch.Tensor, torch.Tensor]]
    takes_prefixes_as: str  # the argument for them, "" if the encoder has none
    positions: int  # of the prefixes, before that of the first token
    # `parameters`: a backward pass to the weights; `masks`: one that ends at the output of the embedding layer and
    # computes no gradient of a weight; `nothing`: no backward pass
    needs: str

    def forward(self) -> Callable[[], None]:
        """Repeat the call. Return its backward pass, from the last vector of the pooled (or else first) token."""
        packing = self.inputs.get("packing")
        with (
            torch.set_grad_enabled(self.needs != "nothing"),
            embeddings_alone(self.encoder) if self.needs == "masks" else nullcontext(),
            packed(cast(PreTrainedModel, self.encoder), None, packing) if packing else nullcontext(),
        ):
            cache = PrefixCache(self.positions)
            for layer, prefix in enumerate(self.prefixes):
                cache.update(*prefix, layer)
            hidden = self.encoder(**self.inputs, **({self.takes_prefixes_as: cache} if self.prefixes else {}))[0]
        if self.needs == "nothing":
            return lambda: None
        if packing and packing.pooled_places is not None:
            read = hidden[0]
        else:
            read = (packing.unpack(hidden) if packing else hidden)[:, 0]
        # Not a constant gradient: a layer norm would turn it into zeros.
        return partial(read.backward, torch.linspace(-1, 1, read.shape[-1]).to(read).expand_as(read))


@contextmanager
def embeddings_alone(encoder: nn.Module) -> Iterator[None]:
    """End backward passes through the encoder at the output of its embedding layer, inside a `with` block."""
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
    """Return the transformers models inside a training model: backbone, twin, generator, discriminator."""
    outermost: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        ours = isinstance(module, SentenceEncoderPreTrainedModel) or not isinstance(module, PreTrainedModel)
        if not ours and not any(name.startswith(f"{outer}.") for outer in outermost):
            outermost[name] = module
    return list(outermost.values())


def record_passes(model: nn.Module, run: Callable[[], object]) -> list[EncoderPass]:
    """Return every encoder pass that `run` makes."""
    passes: list[EncoderPass] = []

    def record(encoder: nn.Module, arguments: tuple, inputs: dict[str, Any]) -> None:
        inputs, name = dict(inputs), cache_argument(encoder) or ""
        cache = inputs.pop(name, None)
        layers = [] if cache is None else [(layer.keys, layer.values) for layer in cache.layers]
        prefixes = [tuple(tensor.detach().requires_grad_() for tensor in layer) for layer in layers]
        positions = 0 if cache is None else cache.get_seq_length()
        needs = "parameters" if torch.is_grad_enabled() else "nothing"
        passes.append(EncoderPass(encoder, inputs, prefixes, name, positions, needs))

    handles = [encoder.register_forward_pre_hook(record, with_kwargs=True) for encoder in encoders(model)]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return passes


def needed_passes(model: ForContrastiveLearning, batch: dict[str, Any]) -> list[EncoderPass]:
    """Return the encoder passes of one optimizer step, each with the backward pass it needs.

    Example:
        >>> from transformers import BertConfig
        >>> from csezoo.modeling import L2PCSRConfig, L2PCSRForContrastiveLearning
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = L2PCSRForContrastiveLearning(L2PCSRConfig(backbone_config=tiny, inner_steps=2))
        >>> ids = torch.tensor([[[1, 2], [1, 2]], [[3, 4], [3, 4]]])  # 2 sentences, 2 views, 2 tokens
        >>> batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        >>> [encoder_pass.needs for encoder_pass in needed_passes(model, batch)]
        ['masks', 'masks', 'parameters']
    """
    passes = record_passes(model, lambda: model(**batch))
    views = [batch[name][:, : model.config.encoded_views] for name in ("input_ids", "attention_mask")]
    inner = record_passes(model, lambda: model.learn_views(*views))
    for encoder_pass in passes[: len(inner)]:
        encoder_pass.needs = "masks"
    return passes


class Updates:
    """The first contrastive optimizer steps of a recipe, as a run makes them: batches, passes, clipping, optimizer.

    Args:
        recipe: a recipe of any method.
        steps: optimizer steps of every `run`, always over the same batches.
        compiled: by inductor, as with `accelerate launch --dynamo_backend inductor`.
    """

    def __init__(self, recipe: Recipe, steps: int, compiled: bool = False):
        self.recipe, self.steps = replace(recipe, max_steps=steps), steps
        self.accelerator = Accelerator(
            mixed_precision=choose_precision(recipe.mixed_precision),
            dynamo_backend="inductor" if compiled else None,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=recipe.gradient_accumulation_steps),
        )
        set_seed(recipe.seeds[0])
        self.built = build(self.recipe)
        self.built.model.to(self.accelerator.device)
        choose_layout(self.recipe, self.built.model, self.accelerator)
        self.layout = self.built.model.layout
        self.data = RunData(self.recipe, recipe.seeds[0], self.built, self.accelerator)
        self.stage = plan_stages(self.recipe, self.data)[-1]
        parts = start_stage(self.stage, self.recipe, self.built.model, self.accelerator)
        self.wrapped, self.optimizer, self.scheduler = parts
        self.wrapped.train()

    def batches(self) -> Iterator[dict[str, Any]]:
        accumulated = self.recipe.gradient_accumulation_steps
        return self.data.batches("contrastive", 0, self.steps * accumulated, before=self.stage.start * accumulated)

    def run(self) -> None:
        """Make the steps. `padding_tokens` is then the padding that they have computed."""
        self.time(warm=0)

    def time(self, warm: int) -> float:
        """Make the steps, and return the seconds of those after the first `warm` ones."""
        loader = self.batches()
        padding = torch.zeros((), device=self.accelerator.device)
        for step in range(self.steps):
            if step == warm:
                padding.item()  # waits for the device
                started = time.perf_counter()
            losses, _ = update(self.wrapped, self.optimizer, loader, self.recipe, self.accelerator)
            self.scheduler.step()
            with torch.no_grad():
                self.built.model.after_update()
            padding += losses[PADDING_TOKENS]
        self.padding_tokens = int(padding)  # waits for the device
        return time.perf_counter() - started

    def settings(self) -> dict[str, object]:
        """Return what was measured, for the report."""
        return {
            "recipe": self.recipe.recipe,
            "method": self.recipe.method,
            "precision": self.accelerator.mixed_precision,
            "batch_size": self.recipe.batch_size,
            "max_length": self.recipe.max_length,
            "steps": self.steps,
            "layout": self.layout,
        }

    def needed_passes(self, batches: Iterable[dict[str, Any]]) -> list[list[EncoderPass]]:
        """Return the encoder passes of each batch."""
        device = self.accelerator.device
        with self.accelerator.autocast():
            return [needed_passes(self.built.model, on_device(batch, device)) for batch in batches]

    def run_passes(self, passes: list[list[EncoderPass]]) -> None:
        """Repeat the passes of each step. Their gradients are dropped after each step.

        The backward passes to the weights come last, as in a step, which has one loss.
        """
        for step in passes:
            pending = []  # backward passes
            for encoder_pass in step:
                with self.accelerator.autocast():
                    pending.append(encoder_pass.forward())
                if encoder_pass.needs != "parameters":
                    pending.pop()()
            while pending:
                pending.pop()()
            self.built.model.zero_grad()
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()


def benchmark_training(recipe: Recipe, *, steps: int = 5, repeats: int = 5) -> dict[str, object]:
    """Time optimizer steps of the contrastive stage against the encoder passes they need.

    A step consists of the batch from the data, forward and backward passes, clipping, optimizer and schedule. Its
    encoder passes are recorded, then repeated alone on the same inputs: same padded tokens, same precision.

    Returns:
        * the figures of `race`, where `ratio` is the training overhead R;
        * `floor`, R*: the counted operations of a step divided by those of its passes;
        * `passes`: the passes of a step, each with its rows, tokens, and the tokens that it computes;
        * the sentences, tokens and padded tokens of the batches, in total and per second;
        * `against padded`: the figures of a second `race` of the same steps without padding and with it, with their
          tokens of padding, and `limit`, the speedup if a step took time for the real tokens of its batch only;
        * operations per second, also as a share of those of a large matrix product in this precision;
        * the seconds that 10^6 sentences would take;
        * the peak memory of the steps, of the GPU if there is one.
    """
    updates = Updates(recipe, steps)
    batches = list(updates.batches())
    passes = updates.needed_passes(batches)
    run_passes = partial(updates.run_passes, passes)
    updates.run()  # the first run is the slowest
    padding = updates.padding_tokens
    peak = peak_device_bytes(updates.accelerator.device) or peak_rss_bytes()
    counted = operations(updates.run)
    floor = counted / operations(run_passes)
    figures = race(updates.run, run_passes, repeats=repeats)
    seconds = figures["median"]["ours"]
    ids = [batch["input_ids"] for batch in batches]
    sentences, tokens = sum(map(len, ids)), sum(tensor.numel() for tensor in ids)
    real = sum(int(batch["attention_mask"].sum()) for batch in batches)
    against: dict[str, object] = {}
    if updates.layout == "packed":
        against["against padded"] = {**against_padded(updates, repeats), "limit": tokens / real}
    return {
        **updates.settings(),
        **figures,
        **against,
        "floor": floor,
        "passes": [describe(encoder_pass) for encoder_pass in passes[0]],
        "sentences": sentences,
        "tokens": real,
        "padded tokens": tokens,
        "padding computed": padding,
        "sentences per second": sentences / seconds,
        "padded tokens per second": tokens / seconds,
        "operations per second": counted / seconds,
        "share of a matrix product's": counted / seconds / matmul_rate(updates.accelerator),
        "seconds for 10^6 sentences": 1e6 / sentences * seconds,
        "peak bytes": peak,
    }


def against_padded(updates: Updates, repeats: int) -> dict[str, Any]:
    """Time the steps in turns as they are and with the padding of their batches."""
    tokens = {}

    def run(name: str, on: bool) -> None:
        updates.built.model.compute_padding(on)
        updates.run()
        tokens[name] = updates.padding_tokens

    padded = partial(run, "usual", True)
    padded()  # the first run is the slowest
    figures = race(partial(run, "ours", False), padded, repeats=repeats)
    updates.built.model.compute_padding(False)
    return {**figures, "speedup": 1 / figures["ratio"], "padding computed": tokens}


def benchmark_memory(recipe: Recipe, *, steps: int = 1) -> dict[str, object]:
    """Measure the memory of optimizer steps against that of the encoder passes they need.

    Memory is the bytes of all tensors that exist at a time. It includes the weights and the optimizer's moments, for
    the passes too.

    Returns:
        `kept bytes` of the weights and moments; `peak bytes` of the steps and of their passes, and `memory ratio`;
        `floor`, the ratio if a step took only the gradients of the weights outside of the encoders in addition.
    """
    updates = Updates(recipe, steps)
    updates.run()  # makes the moments
    model = updates.built.model
    passes = updates.needed_passes(updates.batches())
    moments = [value for state in updates.optimizer.state.values() for value in state.values()]
    kept = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *filter(torch.is_tensor, moments)))
    inside = {id(parameter) for encoder in encoders(model) for parameter in encoder.parameters()}
    heads = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in inside]
    peaks = {}
    for name, run in {"ours": updates.run, "usual": lambda: updates.run_passes(passes)}.items():
        model.zero_grad()
        peaks[name] = kept + allocated_at_most(run, updates.accelerator.device)
    return {
        **updates.settings(),
        "kept bytes": kept,
        "peak bytes": peaks,
        "memory ratio": peaks["ours"] / peaks["usual"],
        "floor": 1 + sum(weight.nbytes for weight in heads) / peaks["usual"],
    }


def allocated_at_most(run: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that tensors made by `run` occupy on a device at a time.

    Example:
        >>> zeros = lambda: torch.zeros(1000) + torch.zeros(1000)  # two terms and their sum
        >>> allocated_at_most(zeros, torch.device("cpu"))
        12000
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]")


def operations(run: Callable[[], None]) -> int:
    """Count the floating-point operations of all matrix products in `run`, including backward passes."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # fused attention cannot be counted
        run()
    return counter.get_total_flops()


def matmul_rate(accelerator: Accelerator) -> float:
    """Return the floating-point operations per second of a large matrix product, the best of five."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision, torch.float32)
    size = 8192 if accelerator.device.type == "cuda" else 1024
    left, right = torch.randn(2, size, size, device=accelerator.device, dtype=dtype)
    return 2 * size**3 / min(product_seconds(left, right) for _ in range(5))


def describe(encoder_pass: EncoderPass) -> dict[str, object]:
    """Return encoder, backward pass, rows, tokens and computed tokens of an encoder pass, for the report."""
    rows, tokens = encoder_pass.inputs["input_ids"].shape
    packing = encoder_pass.inputs.get("packing")
    return {
        "encoder": type(encoder_pass.encoder).__name__,
        "needs": encoder_pass.needs,
        "rows": rows,
        "tokens": tokens,
        "computed": len(packing.places) if packing else rows * tokens,
    }
