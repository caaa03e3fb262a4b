"""Save a model as a complete repository: the files beside its weights, configuration and code.

This is the only file of a checkpoint's code that writes files. The audit knows its functions by name
(`training/publishing/audit_origins.py`): their first argument is the directory that the user saves to.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .encoding import load_tokenizer
from .fingerprint import FINGERPRINT_NAME, new_fingerprint

logger = logging.get_logger(__name__)

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
    directory: Any,
    modules: list[dict],
    transformer: dict,
    oldest_version: str | None = None,
    truncate_dim: int | None = None,
) -> None:
    """Write the files that make `SentenceTransformer(directory)` run `modules` one after the other.

    Args:
        directory: the repository.
        modules: content of `modules.json`.
        transformer: configuration of the first module.
        oldest_version: of sentence-transformers that knows the modules.
        truncate_dim: dimensions that `SentenceTransformer` keeps.
    """
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    if oldest_version:
        settings["__version__"] = {"sentence_transformers": oldest_version}
    if truncate_dim is not None:
        settings["truncate_dim"] = truncate_dim
    JsonFile(modules).to_json_file(f"{directory}/modules.json")
    JsonFile(transformer).to_json_file(f"{directory}/sentence_bert_config.json")
    JsonFile(settings).to_json_file(f"{directory}/config_sentence_transformers.json")


def save_tokenizer(directory: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a tokenizer, naming the generic fast class as every version of transformers knows it."""
    tokenizer.save_pretrained(directory)
    path = f"{directory}/tokenizer_config.json"
    config, _ = PretrainedConfig.get_config_dict(path)
    JsonFile({**config, "tokenizer_class": "PreTrainedTokenizerFast"}).to_json_file(path)


class SavedCompletely(PreTrainedModel):
    """A model that `save_pretrained` and `push_to_hub` save as a complete repository."""

    has_fingerprint = False  # true for serving models
    loaded_from: dict | None = None
    tokenizer: PreTrainedTokenizerBase | None = None  # saved with the model; loaded when it is first needed
    # Completes the code files of a saved directory. The package sets it (`checkpoint_files`). Code loaded from a
    # checkpoint is already complete.
    complete_code: ClassVar[Callable[[Any], None] | None] = None

    def save_pretrained(  # type: ignore[override]  # further positional options depend on the version
        self, save_directory: Any, is_main_process: bool = True, state_dict: dict | None = None, **kwargs: Any
    ) -> None:
        """Save the model as a complete repository. All options of `PreTrainedModel.save_pretrained` work.

        The repository has the model's code, the files of sentence-transformers, and the tokenizer that the model was
        loaded with or that is set as `tokenizer`. A serving model's fingerprint is renewed, without the checksums of
        files that a published repository has. If it cannot be renewed, a warning says so.
        """
        super().save_pretrained(save_directory, is_main_process, state_dict, **kwargs)
        # With `push_to_hub` the files were completed before the upload. An adapter is not a complete model.
        if is_main_process and not kwargs.get("push_to_hub") and not self._hf_peft_config_loaded:
            self._complete(save_directory, variant=kwargs.get("variant"), renew=state_dict is None)

    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        self._complete(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def _complete(self, directory: Any, *, variant: str | None = None, renew: bool = True) -> None:
        """Add the files that `PreTrainedModel.save_pretrained` does not write.

        Args:
            directory: where the model was saved.
            variant: of the names of the weights.
            renew: whether to renew the fingerprint; false if the saved weights are not those of this object.
        """
        if complete := type(self).complete_code:
            complete(directory)
        write_sentence_transformers_files(directory, MODULES, TRANSFORMER, OLDEST_SENTENCE_TRANSFORMERS)
        try:
            save_tokenizer(directory, load_tokenizer(self))  # type: ignore[arg-type]  # every model is of a subclass
        except (OSError, ValueError):  # a model made from a configuration, or a checkpoint without a tokenizer
            if self.loaded_from:
                logger.warning(f"{directory}: no tokenizer was saved, because the model was loaded without one")
        if self.has_fingerprint and renew and self.tokenizer is not None:
            saved: Any = type(self).from_pretrained(directory, dtype=torch.float32, variant=variant)
            fingerprint = JsonFile(new_fingerprint(saved, load_tokenizer(saved)))
            fingerprint.to_json_file(f"{directory}/{FINGERPRINT_NAME}")
        elif self.has_fingerprint and self.loaded_from:
            logger.warning(f"{directory}: {FINGERPRINT_NAME} was not renewed, so verify() cannot check this model")
