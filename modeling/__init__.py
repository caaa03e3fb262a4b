"""The methods of the zoo. Importing it registers their classes with the Auto classes of transformers.

`objectives` and `pooling` have the functions that work without a model. `methods` has a folder for each method,
`contrastive` what all of them train with, `serving` what a published repository carries.
"""

from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as LORA_TARGETS
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from .contrastive.configuration import SentenceEncoderConfig
from .contrastive.view_adapters import QUERY
from .methods import METHODS, method
from .serving.configuration_csezoo import CsezooConfig
from .serving.encoder_layers_csezoo import FUSED, VALUE
from .serving.own_form_csezoo import CsezooOwnFormModel

for _config, _serving, _training in METHODS.values():
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _serving)
    AutoModelForPreTraining.register(_config, _training)
    # peft adapts query and value of BERT; these are their names in every family.
    LORA_TARGETS[_config.model_type] = [name.removeprefix(".") for name in (*QUERY, *VALUE, *FUSED)]
    # `from csezoo.modeling import SimCSEConfig`
    globals().update({cls.__name__: cls for cls in (_config, _serving, _training)})
# Published repositories that have no plain form; a plain one is loaded by the class of its family.
AutoConfig.register(CsezooConfig.model_type, CsezooConfig)
AutoModel.register(CsezooConfig, CsezooOwnFormModel)
LORA_TARGETS[CsezooConfig.model_type] = LORA_TARGETS["simcse"]

__all__ = ["METHODS", "SentenceEncoderConfig", "method"]
