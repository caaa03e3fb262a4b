"""The methods, and in `serving` what published repositories carry. Importing it registers the Auto classes."""

from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as LORA_TARGETS
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from .combination import Method, method
from .configuration_consert import ConSERTConfig
from .configuration_contrastive_tension import ContrastiveTensionConfig
from .configuration_diffaug import DiffAugConfig
from .configuration_diffcse import DiffCSEConfig
from .configuration_isbert import ISBERTConfig
from .configuration_l2pcsr import L2PCSRConfig
from .configuration_prdsimcse import PrdSimCSEConfig
from .configuration_sentence_encoder import SentenceEncoderConfig
from .configuration_sgopt import SGOPTConfig
from .configuration_simcse import SimCSEConfig
from .modeling_consert import ConSERTForContrastiveLearning, ConSERTModel
from .modeling_contrastive_tension import ContrastiveTensionForContrastiveLearning, ContrastiveTensionModel
from .modeling_diffaug import DiffAugForContrastiveLearning, DiffAugModel
from .modeling_diffcse import DiffCSEForContrastiveLearning, DiffCSEModel
from .modeling_isbert import ISBERTForContrastiveLearning, ISBERTModel
from .modeling_l2pcsr import L2PCSRForContrastiveLearning, L2PCSRModel
from .modeling_prdsimcse import PrdSimCSEForContrastiveLearning, PrdSimCSEModel
from .modeling_sgopt import SGOPTForContrastiveLearning, SGOPTModel
from .modeling_simcse import SimCSEForContrastiveLearning, SimCSEModel
from .serving.configuration_csezoo import CsezooConfig
from .serving.layers_csezoo import FUSED, VALUE
from .serving.own_form_csezoo import CsezooOwnFormModel
from .view_adapters import QUERY

# The methods of the zoo, by model type: configuration, serving model, training model.
METHODS: dict[str, Method] = {
    "simcse": (SimCSEConfig, SimCSEModel, SimCSEForContrastiveLearning),
    "prdsimcse": (PrdSimCSEConfig, PrdSimCSEModel, PrdSimCSEForContrastiveLearning),
    "sgopt": (SGOPTConfig, SGOPTModel, SGOPTForContrastiveLearning),
    "diffcse": (DiffCSEConfig, DiffCSEModel, DiffCSEForContrastiveLearning),
    "l2pcsr": (L2PCSRConfig, L2PCSRModel, L2PCSRForContrastiveLearning),
    "consert": (ConSERTConfig, ConSERTModel, ConSERTForContrastiveLearning),
    "contrastive_tension": (
        ContrastiveTensionConfig,
        ContrastiveTensionModel,
        ContrastiveTensionForContrastiveLearning,
    ),
    "isbert": (ISBERTConfig, ISBERTModel, ISBERTForContrastiveLearning),
    "diffaug": (DiffAugConfig, DiffAugModel, DiffAugForContrastiveLearning),
}

for _config, _serving, _training in METHODS.values():
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _serving)
    AutoModelForPreTraining.register(_config, _training)
    # peft adapts query and value of BERT; these are their names in every family.
    LORA_TARGETS[_config.model_type] = [name.removeprefix(".") for name in (*QUERY, *VALUE, *FUSED)]
# Published repositories that have no plain form; a plain one is loaded by the class of its family.
AutoConfig.register(CsezooConfig.model_type, CsezooConfig)
AutoModel.register(CsezooConfig, CsezooOwnFormModel)
LORA_TARGETS[CsezooConfig.model_type] = LORA_TARGETS["simcse"]

__all__ = [
    "METHODS",
    "ConSERTConfig",
    "ConSERTForContrastiveLearning",
    "ConSERTModel",
    "ContrastiveTensionConfig",
    "ContrastiveTensionForContrastiveLearning",
    "ContrastiveTensionModel",
    "DiffAugConfig",
    "DiffAugForContrastiveLearning",
    "DiffAugModel",
    "DiffCSEConfig",
    "DiffCSEForContrastiveLearning",
    "DiffCSEModel",
    "ISBERTConfig",
    "ISBERTForContrastiveLearning",
    "ISBERTModel",
    "L2PCSRConfig",
    "L2PCSRForContrastiveLearning",
    "L2PCSRModel",
    "PrdSimCSEConfig",
    "PrdSimCSEForContrastiveLearning",
    "PrdSimCSEModel",
    "SGOPTConfig",
    "SGOPTForContrastiveLearning",
    "SGOPTModel",
    "SentenceEncoderConfig",
    "SimCSEConfig",
    "SimCSEForContrastiveLearning",
    "SimCSEModel",
    "method",
]
