"""The files of a repository for sentence-transformers, and its tokenizer."""

from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
]
# The first module returns `pooler_output`, so that no other module is needed.
TRANSFORMER = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
    "module_output_name": "sentence_embedding",
}
# The oldest version with that module. An older one tells the user so before it fails.
OLDEST_SENTENCE_TRANSFORMERS = "5.4.0"


class JsonFile(PretrainedConfig):
    """Any JSON value, saved by transformers, because the code of a checkpoint opens no files itself.

    Example:
        >>> print(JsonFile([1, 2]).to_json_string())
        [
          1,
          2
        ]
        <BLANKLINE>
    """

    def __init__(self, content: Any = None):
        self.content = content

    def to_diff_dict(self) -> Any:
        return self.content


def write_sentence_transformers_files(
    directory: Any, modules: list[dict], transformer: dict, oldest_version: str | None = None
) -> None:
    """Write the files that make `SentenceTransformer(directory)` run `modules` one after the other.

    Args:
        directory: the repository.
        modules: content of `modules.json`.
        transformer: configuration of the first module.
        oldest_version: of sentence-transformers that knows the modules.
    """
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    if oldest_version:
        settings["__version__"] = {"sentence_transformers": oldest_version}
    JsonFile(modules).to_json_file(f"{directory}/modules.json")
    JsonFile(transformer).to_json_file(f"{directory}/sentence_bert_config.json")
    JsonFile(settings).to_json_file(f"{directory}/config_sentence_transformers.json")


def save_tokenizer(directory: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a tokenizer, naming the generic fast class as every version of transformers knows it."""
    tokenizer.save_pretrained(directory)
    path = f"{directory}/tokenizer_config.json"
    config, _ = PretrainedConfig.get_config_dict(path)
    JsonFile({**config, "tokenizer_class": "PreTrainedTokenizerFast"}).to_json_file(path)
