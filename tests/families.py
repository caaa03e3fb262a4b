"""Tiny backbones of the families that `docs/backbones.md` lists, with tokenizers of their kinds."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PretrainedConfig, PreTrainedTokenizerFast

from tests.conftest import SENTENCES

SIZES = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64}
SIZES |= {"vocab_size": 300, "max_position_embeddings": 160}
SIZES |= {"initializer_range": 0.2}  # with less, tiny models give all texts the same vector
# Special tokens by their ids: padding, unknown, beginning, end, mask.
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CAUSAL = ("<pad>", "<unk>", "<s>", "</s>")
IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
ROTARY = {**IDS, "head_dim": 16, "num_key_value_heads": 1}
# Other rotations of positions than the defaults of transformers 4 and 5, as in real checkpoints.
SCALED = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 40}
MODERN = dict.fromkeys(("full_attention", "sliding_attention"), {"rope_type": "default", "rope_theta": 2e4})
QWEN3 = {"rope_type": "default", "rope_theta": 1e6}
LLAMA = {"rope_type": "llama3", "rope_theta": 5e5, **SCALED}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "position_buckets": 8}
DEBERTA |= {"position_biased_input": False, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
# A family's name in the table: its model type, changes to `SIZES`, the kind of its tokenizer.
FAMILIES: dict[str, tuple[str, dict[str, object], str]] = {
    "BERT": ("bert", {}, "wordpiece"),
    "RoBERTa": ("roberta", {}, "byte-level"),
    "XLM-R": ("xlm-roberta", {}, "unigram"),
    "data2vec": ("data2vec-text", {}, "byte-level"),
    "ERNIE": ("ernie", {}, "wordpiece"),
    "ELECTRA": ("electra", {"embedding_size": 16}, "wordpiece"),
    "ALBERT": ("albert", {"embedding_size": 16}, "unigram-bert"),
    "MPNet": ("mpnet", {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}, "wordpiece-roberta"),
    "DistilBERT": ("distilbert", {}, "wordpiece"),
    "DeBERTa-v3": ("deberta-v2", DEBERTA, "unigram-bert"),
    "ModernBERT": (
        "modernbert",
        {**IDS, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 128, "rope_parameters": MODERN},
        "byte-level-bert",
    ),
    "NomicBERT": ("nomic_bert", {"head_dim": 16}, "wordpiece"),
    "GTE": ("gte", {}, "wordpiece"),
    "Jina-v3": ("jina_embeddings_v3", {}, "unigram"),
    "EuroBERT": ("eurobert", {**ROTARY, "mask_token_id": 4}, "byte-level-bert"),
    "Qwen3": ("qwen3", {**ROTARY, "rope_parameters": QWEN3}, "byte-level-causal"),
    "Llama": ("llama", {**ROTARY, "rope_parameters": LLAMA}, "unigram-causal"),
    "Gemma3": ("gemma3_text", ROTARY, "unigram-causal"),
}
CAUSAL_FAMILIES = ("Qwen3", "Llama", "Gemma3")
# Families whose configurations have no dropout by default.
NO_DROPOUT = ("ALBERT", "ModernBERT", "NomicBERT", "EuroBERT", *CAUSAL_FAMILIES)


def family_config(family: str, **changes: object) -> PretrainedConfig:
    """A three-layer configuration of width 32."""
    model_type, own, _ = FAMILIES[family]
    if model_type == "distilbert":
        own = {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64, **own}
        return AutoConfig.for_model(
            model_type, vocab_size=300, max_position_embeddings=160, initializer_range=0.2, **own, **changes
        )
    # transformers changes the mappings that it is given.
    return AutoConfig.for_model(model_type, **copy.deepcopy({**SIZES, **own, **changes}))


def family_tokenizer(family: str, texts: list[str] = SENTENCES) -> PreTrainedTokenizerFast:
    """A tokenizer of the family's kind, trained on `texts`."""
    kind = FAMILIES[family][2]
    if kind.startswith("wordpiece"):
        special = ROBERTA if kind.endswith("roberta") else BERT
        unknown = "<unk>" if kind.endswith("roberta") else "[UNK]"
        backend = Tokenizer(models.WordPiece(unk_token=unknown))
        backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=295, special_tokens=list(special), show_progress=False)
    elif kind.startswith("byte-level"):
        special = {"byte-level": ROBERTA, "byte-level-bert": BERT}.get(kind, CAUSAL)
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=295, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        )
    else:  # SentencePiece's unigram model
        special = {"unigram": ROBERTA, "unigram-bert": BERT}.get(kind, CAUSAL)
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        unknown = "<unk>" if "<unk>" in special else "[UNK]"
        trainer = trainers.UnigramTrainer(
            vocab_size=295, special_tokens=list(special), unk_token=unknown, show_progress=False
        )
    backend.train_from_iterator(texts, trainer)
    names = {token.strip("[]<>"): token for token in special}
    begin, end = names.get("CLS", names.get("s")), names.get("SEP", names.get("/s"))
    ids = {token: number for number, token in enumerate(special)}
    roles = {"pad_token": names.get("PAD", names.get("pad")), "unk_token": names.get("UNK", names.get("unk"))}
    if special is CAUSAL:
        roles |= {"bos_token": begin, "eos_token": end}
        single = f"{begin} $A" if "unigram" in kind else "$A"  # Llama's tokenizer begins texts, Qwen's does not
    else:
        roles |= {"cls_token": begin, "sep_token": end, "mask_token": names.get("MASK", names.get("mask"))}
        roles |= {"bos_token": begin, "eos_token": end} if special is ROBERTA else {}
        single = f"{begin} $A {end}"
    used = [(token, ids[token]) for token in (begin, end)]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=used)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def save_family(family: str, directory: Path, **changes: object) -> Path:
    """Save a tiny pre-trained model of a family with its tokenizer; one that has a masked-LM head with it."""
    torch.manual_seed(0)
    config = family_config(family, **changes)
    auto_class = AutoModel if family in CAUSAL_FAMILIES else AutoModelForMaskedLM
    auto_class.from_config(config).save_pretrained(directory)
    family_tokenizer(family).save_pretrained(directory)
    return directory
