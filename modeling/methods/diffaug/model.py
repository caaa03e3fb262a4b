r"""DiffAug: views of a sentence that differ by learned prefixes, which are first tuned on labelled pairs.

Every attention layer m has l extra keys and values: one prefix for the anchor, another for its positive (and hard
negative) (sections 2.2 and 3.1):

.. math:: H_p = \mathrm{softmax}\!\Big(\frac{Q [P_k^m; K]^\top}{\sqrt d}\Big) [P_v^m; V]

Stage 1 tunes the prefixes and a classifier on [u; v; |u - v|] on entailed and contradicted pairs. The language model
and the (random) projection are frozen, u = f(premise; prefix 1) and v = f(hypothesis; prefix 2). Stage 2 trains all
parameters with the SimCSE loss, and with the cross-entropy of stage 1 if `nli_weight` is above 0. At test both
prefixes are visible and there is no projection.

References:
    Wang, Lu 2022, "Differentiable Data Augmentation for Contrastive Sentence Representation Learning", EMNLP 2022.

    As in the release: one MLP, Linear(H, H) - tanh - Linear(H, 2MH), computes both prefixes from one table of 2l
    vectors, with dropout on its output. A row sees only the prefix of its view. Real tokens have positions from 2l in
    training and at test, and so do those of the template whose bias is subtracted. A bias is looked up at the
    sentence's length plus l (`denoise_length_offset`), a mistake of the release. One thing differs: stage 1 of the
    release leaves the language model out of the optimizer, but not out of the gradient norm, which is then larger than
    that of the prefixes alone. Here the language model is frozen, and the norm is over the trained parameters.

    Neither paper nor release states the following, so it was decided here. All new weights start like the backbone's
    (N(0, 0.02), zero biases). The `same` prefix has length l, and the serving model sees two copies of it. For LoRA
    and adapters, the serving model has the mean of the views' modules. `freeze_backbone` still trains the projection
    in stage 2. RoBERTa is trained with BERT's hyperparameters.

Relations:
    With `prefix_length: 0`, or with untrained LoRA or adapters, this is SimCSE.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peft import PrefixEncoder, PrefixTuningConfig
from torch import nn

from ...contrastive.backbones import hidden_dropout
from ...contrastive.devices import forked_rng
from ...contrastive.packing import LengthBuckets, Packing, can_pack
from ...contrastive.sentence_encoder import SentenceEncoderModel
from ...contrastive.training_model import ForContrastiveLearning
from ...contrastive.view_adapters import OUTPUT, ViewAdapters, projections
from ...serving.encoder_layers_csezoo import PrefixCache, cache_argument, key_shape, keys_and_values, run_with_slots
from ...serving.pooling_csezoo import BackboneOutput
from .configuration import DiffAugConfig
from .measures import representation_divergence, weight_convergence


class DiffAugModel(SentenceEncoderModel):
    """The encoder that a DiffAug checkpoint serves: the backbone with the prefixes of both views.

    The prefixes are stored as keys and values, `prefixes` `(M, 2, heads, 2l, H / heads)`, the last output of the
    training model's table and MLP.
    """

    config_class = DiffAugConfig
    training_heads = SentenceEncoderModel.training_heads + ("prefix_encoder", "average_prefix_encoder")
    # With gradient checkpointing, a layer would run again without its prefixes or its rows' adapters.
    supports_gradient_checkpointing = False

    def __init__(self, config: DiffAugConfig):
        super().__init__(config)
        backbone = config.backbone_config
        if config.views_module != "prefix":
            sets = 2 if config.views_mode == "different" else 1
            self.view_adapters = ViewAdapters(
                self.backbone, config.views_module, config.bottleneck, sets, config.lora_scale
            )
        elif config.prefix_positions:
            self.cache_argument = cache_argument(self.backbone)
            if not self.cache_argument:
                keys_and_values(self.backbone)  # refuses a backbone that has none
            heads, size = key_shape(backbone)
            shape = (config.num_hidden_layers, 2, heads, config.prefix_positions, size)
            self.prefixes = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.post_init()

    @torch.no_grad()
    def own_form(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        own, tensors = super().own_form()
        if self.config.prefix_positions:
            own["prefix_positions"] = self.config.prefix_positions
            tensors["prefixes"] = self.prefixes
        elif self.config.views_module == "adapter":  # the mean of the sets is one adapter
            names = {module: name for name, module in self.backbone.named_modules()}
            after = [names[linear] for _, linear in projections(self.backbone, OUTPUT)]
            own["adapters"] = {"size": self.config.bottleneck * self.view_adapters[0].sets, "after": after}
            adapters: list[Any] = list(self.view_adapters)
            for number, adapter in enumerate(adapters):
                tensors[f"adapters.{number}.down.weight"] = adapter.down.weight
                tensors[f"adapters.{number}.up.weight"] = adapter.up.weight / adapter.sets
        return own, tensors

    def lora_modules(self) -> list[ViewAdapters]:
        return super().lora_modules() + ([self.view_adapters] if self.config.views_module == "lora" else [])

    @property
    def needs_padding(self) -> bool:
        """Whether prefixes are in slots, which are extra tokens of each row, or rows must stay together.

        The prefixes, or the modules, of a row are those of its view. An encoder that cannot read packed tokens would
        need them for its parts.
        """
        slots = self.config.prefix_positions > 0 and not self.cache_argument
        return slots or not can_pack(self.backbone)

    @property
    def pools_early(self) -> bool:
        """Whether there are prefixes: other modules read all tokens, each with its share of the sets."""
        return self.config.views_module == "prefix"

    def run_backbone(
        self,
        attention_mask: torch.Tensor,
        packing: Packing | LengthBuckets | None = None,
        views: torch.Tensor | None = None,
        prefixes: torch.Tensor | None = None,
        cache: PrefixCache | None = None,
        **inputs: Any,
    ) -> BackboneOutput:
        """Run the backbone with the modules of one view or both.

        An encoder gets the prefix as the keys and values of earlier tokens, or in slots if it takes none.

        Args:
            views: `(rows or 1,)`, 0 or 1, the view whose modules a row uses; both by default.
            prefixes: in the shape of `self.prefixes`, the default.
            cache: an empty cache. It receives the keys and values of all layers, prefixes first.
        """
        config = self.config
        if config.views_module != "prefix":
            shares = None if views is None or config.views_mode == "same" else F.one_hot(views, 2)[:, None]
            if shares is not None and isinstance(packing, Packing):
                shares = shares.expand(len(attention_mask), 1, 2)[packing.rows].transpose(0, 1)
            with self.view_adapters.shared(shares):
                return super().run_backbone(attention_mask, packing, **inputs)
        if not config.prefix_positions:
            return super().run_backbone(attention_mask, packing, **inputs)
        prefixes = self.prefixes if prefixes is None else prefixes
        mask = attention_mask
        seen = mask.new_ones(mask.shape[0], config.prefix_positions)
        order = packing.order if isinstance(packing, Packing) else None
        # The prefixes of all packed rows come before the tokens of all rows, see `Packing.split`. So the heads come
        # first, and no copy is needed to join the rows.
        place = 2 if order is None else 3  # of the rows
        if views is None:
            prefixes = prefixes.unsqueeze(place)
        elif self.cache_argument and not self.causal:
            # A row does not see the prefix of the other view, so it is left out.
            chosen = views if order is None else views.expand(len(order))[order]
            prefixes = prefixes.unflatten(3, (2, -1)).movedim(3, place).index_select(place, chosen)
            seen = seen[:, : config.prefix_length]
        else:  # the places of tokens count, so the prefix of the other view stays, and is masked
            prefixes = prefixes.unsqueeze(place)
            seen = F.one_hot(views, 2).to(mask).repeat_interleave(config.prefix_length, 1).expand(mask.shape[0], -1)
        # (M, 2, rows, heads, l or 2l, size), packed (M, 2, heads, rows, l or 2l, size)
        shape = [-1] * prefixes.dim()
        shape[place] = mask.shape[0]
        dropout = config.prefix_dropout
        dropout = hidden_dropout(config.backbone_config) if dropout is None else dropout
        prefixes = F.dropout(prefixes.expand(shape), dropout, self.training)
        if order is not None:
            prefixes = prefixes.flatten(3, 4).unsqueeze(2)
        mask = torch.cat([seen, mask], dim=1)
        # A new one, because each forward appends to it.
        cache = PrefixCache(config.prefix_positions) if cache is None else cache
        if self.cache_argument:
            for layer, (keys, values) in enumerate(prefixes):
                cache.update(keys, values, layer)
            return super().run_backbone(mask, packing, **{self.cache_argument: cache}, **inputs)
        run, padding = partial(super().run_backbone, mask), config.backbone_config.pad_token_id
        outputs, written = run_with_slots(run, self.backbone, prefixes, padding, **inputs)
        for layer, (keys, values) in enumerate(zip(*written, strict=True)):
            cache.update(keys, values, layer)
        return outputs


class DiffAugForContrastiveLearning(ForContrastiveLearning):
    """The training model of DiffAug.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = DiffAugForContrastiveLearning(DiffAugConfig(backbone_config=tiny))
        >>> ids = torch.tensor([[[1, 2], [1, 2], [3, 4]], [[3, 4], [3, 4], [1, 2]]])  # 2 triplets of 2 tokens
        >>> list(model(nli_input_ids=ids, nli_attention_mask=torch.ones_like(ids)).losses)  # stage 1
        ['nli']
        >>> list(model(input_ids=ids, attention_mask=torch.ones_like(ids)).losses)  # stage 2
        ['contrastive']
    """

    config_class = DiffAugConfig
    serving_class = DiffAugModel
    seams = ("views",)
    distinct_views = 2
    supports_gradient_checkpointing = False

    def __init__(self, config: DiffAugConfig):
        super().__init__(config)
        if config.prefix_positions:
            self._build_prefix_encoders()
        self.post_init()

    def _build_prefix_encoders(self) -> None:
        self.prefix_encoder = self._build_prefix_encoder()
        if self.config.ema_decay > 0:
            self.average_prefix_encoder = self._build_prefix_encoder().requires_grad_(False)

    def _build_prefix_encoder(self) -> PrefixEncoder:
        config = self.config
        heads, size = key_shape(config.backbone_config)
        return PrefixEncoder(
            PrefixTuningConfig(
                num_virtual_tokens=config.prefix_length if config.views_mode == "same" else config.prefix_positions,
                token_dim=heads * size,
                num_layers=config.num_hidden_layers,
                num_attention_heads=heads,
                encoder_hidden_size=config.hidden_size,
                prefix_projection=config.reparametrisation,
            )
        ).to(self.model.prefixes)

    @torch.no_grad()
    def initialise_heads(self, lost: set[str]) -> set[str]:
        """Train the served prefixes directly: the table and MLP behind them cannot be restored."""
        if "prefix_encoder" in lost:
            self.config.reparametrisation = False
            self._build_prefix_encoders()
            table = self.prefix_encoder.embedding.weight
            table.copy_(self.model.prefixes.permute(3, 0, 1, 2, 4).flatten(1)[: len(table)])
        return super().initialise_heads(lost) | ({"prefix_encoder"} & lost)

    def averages(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return every average of weights. The prefixes that the average serves come from an average, too."""
        averages = super().averages()
        if averages and self.config.prefix_positions:
            averages.append((self.average_prefix_encoder, self.prefix_encoder))
        return averages

    def prefixes(self, *, averaged: bool = False) -> torch.Tensor:
        """Return the prefixes of both views as keys and values, `(M, 2, heads, 2l, H / heads)`, view 1 first."""
        encoder = self.average_prefix_encoder if averaged else self.prefix_encoder
        table = encoder.embedding.weight
        slots = torch.arange(self.config.prefix_positions, device=table.device) % len(table)
        flat = encoder(slots)  # (2l, 2MH): for every layer its key, then its value
        shape = (self.config.num_hidden_layers, 2, key_shape(self.config.backbone_config)[0], -1)
        return flat.unflatten(1, shape).permute(1, 2, 3, 0, 4)

    def view_inputs(self, views: torch.Tensor) -> dict[str, torch.Tensor]:
        inputs = {"views": views.clamp(max=1)}
        return {**inputs, "prefixes": self.prefixes()} if self.config.prefix_positions else inputs

    @torch.no_grad()
    def serving_model(self) -> SentenceEncoderModel:
        """Return the model to serve, with the current prefixes."""
        served = super().serving_model()
        if self.config.prefix_positions:
            self.model.prefixes.copy_(self.prefixes())
            if self.config.ema_decay > 0:
                served.get_parameter("prefixes").copy_(self.prefixes(averaged=True))
        return served

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Update the prefixes of the serving model and save, because the checkpoint may be served."""
        self.serving_model()
        super().save_pretrained(*args, **kwargs)

    def frozen_parameters(self, stage: str) -> Iterable[nn.Parameter]:
        """In stage `nli`, freeze all but the views' modules and the classifier; later, freeze what the config says."""
        config = self.config
        modules = {"lora": "view_adapters", "adapter": "view_adapters", "prefix": "prefix_encoder"}
        of_views = [p for name, p in self.named_parameters() if modules[config.views_module] in name.split(".")]
        classifier = list(self.nli_classifier.parameters()) if config.nli_classifies else []
        if stage == "nli":
            trained = {id(parameter) for parameter in (*of_views, *classifier)}
            return [parameter for parameter in self.parameters() if id(parameter) not in trained]
        frozen = list(super().frozen_parameters(stage))
        frozen += [self.model.prefixes] if config.prefix_positions else []  # loading makes every parameter trainable
        frozen += self.model.backbone.parameters() if config.freeze_backbone else []
        frozen += of_views if config.freeze_views else []
        # Without a loss the classifier is frozen, so that no process waits for its gradient.
        return frozen + (classifier if config.nli_weight == 0 else [])

    @torch.no_grad()
    def diagnostics(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None, **_: Any
    ) -> dict[str, float]:
        """Return δ between the pooled vectors of premises and entailed hypotheses, and κ if there are prefixes.

        With prefixes, return the δ of dropout too, see `dropout_divergence`.

        The paper does not say which keys and values of the language model κ measures. Here they are those of all real
        tokens of these sentences, premises with prefix 1 and hypotheses with prefix 2, compared with both prefixes.
        """
        if labels is not None:
            input_ids, attention_mask = input_ids[labels == 1], attention_mask[labels == 1]
        if not len(input_ids):  # a file may begin with other labels
            return {}
        input_ids, attention_mask = input_ids[:, :2], attention_mask[:, :2]
        cache = PrefixCache(self.config.prefix_positions)
        with_cache = {"cache": cache} if self.config.prefix_positions else {}
        pooled = self.encode_views(input_ids, attention_mask, **with_cache)[1]
        first, second = pooled.unflatten(0, input_ids.shape[:2]).unbind(1)
        measured = {"delta": representation_divergence(first, second).item()}
        if with_cache:
            real = attention_mask.flatten(0, 1).bool()

            def tokens(states: torch.Tensor) -> torch.Tensor:  # (rows, heads, l or 2l + T, size) to (real tokens, H)
                return states[:, :, -real.shape[1] :].transpose(1, 2).flatten(2)[real]

            layers: list[Any] = cache.layers  # of attention, each with keys and values
            keys, values = zip(*((tokens(layer.keys), tokens(layer.values)) for layer in layers), strict=True)
            prefix_keys, prefix_values = self.prefixes().transpose(2, 3).flatten(3).unbind(1)  # (M, 2l, H)
            measured["kappa"] = weight_convergence(keys, values, prefix_keys, prefix_values).item()
            measured["delta_dropout"] = self.dropout_divergence(input_ids[:, 0], attention_mask[:, 0])
        return measured

    @torch.no_grad()
    def dropout_divergence(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> float:
        """Return δ where dropout makes the views, as in SimCSE: the reference line of the paper's figure 3a.

        The language model reads each sentence `(B, T)` twice, without prefixes. The random state is restored.
        """
        serving, training = self.model, self.model.backbone.training
        ids, mask = input_ids.repeat(2, 1), attention_mask.repeat(2, 1)
        serving.backbone.train()
        with forked_rng(ids.device):
            outputs = SentenceEncoderModel.run_backbone(serving, mask, input_ids=ids, output_hidden_states=True)
        serving.backbone.train(training)
        first, second = serving.pool_outputs(outputs, ids, mask).chunk(2)
        return representation_divergence(first, second).item()
