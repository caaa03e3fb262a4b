"""What the code of a checkpoint may use. The audit reports everything else.

A name is here because modelling code needs it, and because it cannot read or write files, use the network, start
programs, run text as code, or return an object that can. Names are patterns, separated by spaces.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# Operations on tensors, as functions of torch and as methods. A method may also end in `_` (in place).
TENSOR_OPERATIONS = """
abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all allclose amax amin aminmax angle any
argmax argmin argsort argwhere asin asinh atan atan2 atanh baddbmm bernoulli bincount bitwise_\\w+ bmm
broadcast_to bucketize cdist ceil chunk clamp clamp_max clamp_min clip clone conj copysign corrcoef cos cosh
cosine_similarity count_nonzero cov cross cummax cummin cumprod cumsum deg2rad detach diag diag_embed diagonal
diff digamma dist div divide dot einsum eq equal erf erfc erfinv exp exp2 expm1 flatten flip float_power floor
floor_divide fmax fmin fmod frac gather ge greater greater_equal gt heaviside histc imag index_add index_copy
index_fill index_put index_select inner inverse is_complex is_floating_point isclose isfinite isin isinf isnan
kron kthvalue le lerp less less_equal lgamma log log10 log1p log2 log_softmax logaddexp logcumsumexp logdet
logical_\\w+ logit logsumexp lt masked_fill masked_scatter masked_select matmul matrix_exp max maximum mean
median min minimum mm mode moveaxis movedim mul multinomial multiply mv nan_to_num nanmean narrow ne neg
negative nonzero norm not_equal numel outer pdist permute pinverse polar pow prod put quantile rad2deg ravel
real reciprocal relu remainder repeat_interleave reshape roll rot90 round rsqrt scatter scatter_add
scatter_reduce searchsorted select sgn sigmoid sign sin sinc sinh slogdet softmax sort split sqrt square
squeeze stack std std_mean sub subtract sum svd swapaxes swapdims t take take_along_dim tan tanh tensor_split
tile topk trace transpose trapezoid tril triu true_divide trunc unbind unflatten unique unique_consecutive
unsqueeze var var_mean vdot view_as_complex view_as_real where xlogy
"""
# The modules that modelling code needs, and the names that it needs of each.
MODULES = {
    "__future__": "[a-z]\\w+",
    "abc": "ABC ABCMeta abstractmethod",
    "collections": "Counter OrderedDict defaultdict deque namedtuple abc",
    "collections.abc": "[A-Z]\\w+",
    "contextlib": "contextmanager nullcontext suppress",
    "copy": "copy deepcopy",
    "dataclasses": "dataclass field fields replace",
    "einops": "rearrange reduce repeat",
    "enum": "Enum IntEnum auto",
    "functools": "cache cached_property lru_cache partial wraps",
    "huggingface_hub.dataclasses": "strict",
    "inspect": "Parameter signature",
    "itertools": "[a-z]\\w+",
    "json": "dumps loads",
    "logging": "getLogger",
    "math": "[a-z]\\w*",
    "numpy": """ndarray (bool|float|int|uint)(8|16|32|64|_)? arange argmax argsort array asarray concatenate dot
        empty exp mean newaxis ones sqrt stack sum where
        vstack zeros""",
    "peft": "PrefixEncoder PrefixTuningConfig",
    "random": "Random choice randint random sample seed shuffle uniform",
    "re": "[A-Z]+ compile escape findall finditer fullmatch match search split sub",
    "time": "perf_counter time",
    "torch": f"""{TENSOR_OPERATIONS} __version__ (Bool|Double|Float|Int|Long)?Tensor
        (Byte|Half|BFloat16|Char|Short)Tensor
        Size Generator arange as_tensor atleast_[123]d autocast bfloat16 block_diag bool
        broadcast_tensors cartesian_prod cat chain_matmul column_stack combinations compile complex\\d* concat
        concatenate contiguous_format device double dstack dtype e empty empty_like enable_grad eye finfo float
        float(16|32|64) float8\\w+ from_numpy full full_like get_autocast\\w+ get_default_dtype half hstack iinfo inf
        inference_mode int int(8|16|32|64) is_autocast_\\w+ is_grad_enabled is_inference_mode_enabled is_tensor
        layer_norm linspace logspace long manual_seed meshgrid nan no_grad ones ones_like pi promote_types rand
        rand_like randint randint_like randn randn_like randperm range result_type row_stack set_grad_enabled short
        sparse_coo_tensor sym_int tensor tensordot tril_indices triu_indices uint8 unravel_index vstack zeros
        zeros_like""",
    "torch.amp": "autocast custom_bwd custom_fwd",
    "torch.autograd": "Function grad",
    "torch.autograd.function": "Function once_differentiable",
    "torch.backends.cuda": "\\w+_sdp_enabled",
    "torch.compiler": "disable is_compiling",
    "torch.cuda": "amp current_device device_count empty_cache is_available",
    "torch.cuda.amp": "autocast custom_bwd custom_fwd",
    "torch.distributed": "ReduceOp all_gather all_reduce barrier broadcast get_rank get_world_size is_\\w+",
    "torch.distributed.tensor": "DTensor",
    "torch.fft": "i?r?fft[2n]?",
    "torch.jit": "is_scripting is_tracing",
    "torch.linalg": "cholesky det diagonal eigh eigvalsh inv matrix_norm norm pinv qr solve svd svdvals vector_norm",
    "torch.nn": "[A-Z]\\w+",
    "torch.nn.attention": "SDPBackend sdpa_kernel",
    "torch.nn.functional": f"""{TENSOR_OPERATIONS} adaptive_\\w+ alpha_dropout avg_pool\\dd batch_norm
        binary_cross_entropy\\w* celu conv\\w+ cosine_embedding_loss cross_entropy dropout\\w* elu embedding
        embedding_bag fold gelu glu group_norm gumbel_softmax hard\\w+ hinge_embedding_loss huber_loss interpolate
        kl_div l1_loss layer_norm leaky_relu linear logsigmoid margin_ranking_loss max_pool\\dd mish mse_loss nll_loss
        normalize one_hot pad pairwise_distance prelu relu6 rms_norm scaled_dot_product_attention selu silu
        smooth_l1_loss soft_margin_loss softmin softplus softsign triplet_margin_\\w+ unfold""",
    "torch.nn.init": "[a-z]\\w+_",
    "torch.nn.modules": "[A-Z]\\w+",
    "torch.nn.parameter": "Parameter",
    "torch.nn.utils": "clip_grad_norm_ parametrize",
    "torch.nn.utils.parametrize": "register_parametrization",
    "torch.nn.utils.rnn": "pad_sequence unpad_sequence",
    "torch.random": "fork_rng",
    "torch.special": "entr erf expit gammaln log_softmax logit logsumexp softmax xlogy",
    "torch.utils": "",
    "torch.utils.checkpoint": "checkpoint",
    "tqdm": "tqdm trange",
    "tqdm.auto": "tqdm trange",
    "tqdm.autonotebook": "tqdm trange",
    "transformers": """__version__ Auto[A-Z]\\w+
        \\w*(Config|Model|Tokenizer|TokenizerFast|TokenizerBase|Cache|Output|Encoding)
        \\w+For[A-Z]\\w+""",
    "transformers.activations": "ACT2FN \\w*gelu\\w* \\w+Activation get_activation",
    "transformers.cache_utils": "\\w*Cache",
    "transformers.configuration_utils": "Pre[tT]rainedConfig",
    "transformers.initialization": "[a-z]\\w+_",
    "transformers.masking_utils": "ALL_MASK_ATTENTION_FUNCTIONS create_\\w+",
    "transformers.modeling_attn_mask_utils": "AttentionMaskConverter _prepare_\\w+ _create_\\w+",
    "transformers.modeling_layers": "[A-Z]\\w+",
    "transformers.modeling_outputs": "\\w*Output\\w*",
    "transformers.modeling_rope_utils": "ROPE_INIT_FUNCTIONS RopeParameters dynamic_rope_update",
    "transformers.modeling_utils": "ALL_ATTENTION_FUNCTIONS PreTrainedModel slice_logits_to_keep",
    "transformers.processing_utils": "Unpack",
    "transformers.models\\.\\w+": "\\w+(Config|Model|Tokenizer|TokenizerFast)",
    "transformers.models\\.\\w+\\.configuration_\\w+": "\\w+Config",
    "transformers.models\\.\\w+\\.modeling_\\w+": "[A-Z]\\w+ apply_rotary_pos_emb repeat_kv rotate_half",
    "transformers.models\\.\\w+\\.tokenization_\\w+": "\\w+(Tokenizer|TokenizerFast)",
    "transformers.pytorch_utils": "\\w*chunking\\w* find_pruneable_\\w+ id_tensor_storage meshgrid prune_\\w+",
    "transformers.tokenization_utils_base": "BatchEncoding PreTrainedTokenizerBase",
    "transformers.utils": """ModelOutput TransformersKwargs
        add_\\w*docstring\\w* auto_docstring cached_file can_return_tuple
        [A-Z_]+_NAME is_\\w+_available is_torch_\\w+ logging replace_return_docstrings""",
    "transformers.utils.generic": "can_return_tuple check_model_inputs merge_with_config_defaults",
    "transformers.utils.logging": "get_logger tqdm",
    "transformers.utils.output_capturing": "OutputRecorder capture_outputs",
    "transformers.utils.versions": "require_version",
    "threading": "get_ident",
    "typing": """Annotated Any Callable ClassVar Dict Final FrozenSet Generic Iterable Iterator List Literal Mapping
        NamedTuple NoReturn Optional ParamSpec Protocol Sequence Set TYPE_CHECKING Tuple Type TypeAlias TypeVar
        TypedDict Union Unpack cast overload runtime_checkable""",
    "warnings": "catch_warnings warn",
    "zlib": "adler32 crc32",
}
# Attributes of tensors, modules, configurations, tokenizers, texts and collections. Attributes that the code defines
# itself are allowed too.
ATTRIBUTES = f"""
{TENSOR_OPERATIONS} AVG H MAX MIN SUM T __all__ __class__ __doc__ __init__ __len__ __module__ __mro__ __name__
all_special_ids all_special_tokens all_tied_weights_keys append apply architectures as_strided attention_dropout
attention_mask attention_probs_dropout_prob attentions _attn_implementation backward base_model base_model_prefix
batch_decode batch_encode_plus bfloat16 bias bits bool bos_token_id buffers build_inputs\\w* __call__ capitalize
char children chunk_size_feed_forward classifier_dropout clear cls_token cls_token_id config config_class
__contains__ contiguous convert_ids_to_tokens convert_tokens_to_\\w+ copy copy_ count cpu cross_attention_cache
cross_attentions cuda cumsum data debug decode default default_factory device difference dim disable double dropout
dtype element_size elements embedding embedding_dim embeddings encode encoder endswith __enter__ eos_token_id eps
error eval __exit__ expand expand_as extend fill_ fill_diagonal_ find float for_model forward _forward_hooks
from_config from_dict from_iterable from_numpy fromkeys functional generator get get_buffer
get_extended_attention_mask get_head_mask get_input_embeddings get_output_embeddings get_parameter get_seq_length
get_submodule get_text_config getEffectiveLevel __getitem__ gradient_checkpointing _gradient_checkpointing_func
group groups half hidden_act hidden_dropout_prob hidden_size hidden_states id2label in_features index indices info
info_once _init_weights _hf_peft_config_loaded init_weights initializer_range input_ids insert int intermediate_size
intersection invert_attention_mask is_contiguous is_cpu is_cuda is_decoder is_encoder_decoder is_fast
is_gradient_checkpointing is_leaf is_nested isalpha isdigit isdisjoint isnumeric isspace issubset issuperset item
items itemsize __iter__ join keys kind label2id language last_hidden_state layer layer_norm_eps layer_norm_epsilon
layers layout ljust load_state_dict loaded_from logits long loss loss_function lower lstrip main_input_name major
manual_seed mark_non_differentiable mask_token mask_token_id max_position_embeddings minor model model_input_names
model_max_length model_type modules most_common move_to_end n_embd n_head n_inner n_layer n_positions name
name_or_path named_\\w+ nbytes ndim needs_input_grad nelement __new__ new_empty new_full new_ones new_tensor
new_zeros _no_split_modules normal_ normalize num_attention_heads num_embeddings num_hidden_layers num_labels numpy
out_features output_attentions output_hidden_states p pad pad_token pad_token_id padding_idx padding_side parameters
parametrizations params partition past_key_values pin_memory pooler_output pop popitem popleft
position_embedding_type position_ids __post_init__ post_init problem_type __qualname__ randint random register
register_\\w*(hook|parameter|module|buffer) remove removeprefix removesuffix repeat replace requires_grad
requires_grad_ reset_parameters resize_token_embeddings return_dict reverse rindex rope_parameters rope_scaling
rope_theta rotary_dim rpartition rsplit rstrip sample save_for_backward saved_tensors self_attention_cache
sep_token_id _set_gradient_checkpointing set_input_embeddings set_output_embeddings setdefault __setitem__ setter
shape shuffle size softmax span special_tokens_map split splitlines start startswith state_dict step stop
storage_offset stride strip symmetric_difference tie_weights tie_word_embeddings _tied_weights_keys title to to_dict
to_tuple token_type_ids tokenize tolist torch_dtype train training translate type type_as type_vocab_size uint8
uniform_ union update upper use_cache use_return_dict use_sdpa values __version__ view view_as vocab vocab_size warn
warn_if_padding_and_no_attention_mask warning warning_advice warning_once weight zero_ zero_grad zfill
"""
BUILTINS = """
abs all any bool bytes callable chr classmethod complex dict divmod enumerate filter float frozenset getattr
hasattr hash id int isinstance issubclass iter len list map max min next object ord pow print property range
repr reversed round set setattr slice sorted staticmethod str sum super tuple type vars zip None True False
NotImplemented Ellipsis \\w+Error \\w*Warning \\w*Exception StopIteration KeyboardInterrupt __name__ __doc__
"""
# Why some names outside of these lists are findings. Attributes with these names are findings even if the code defines
# such attributes itself.
REASONS = {
    name: why
    for why, names in {
        "runs text as code": "eval exec get_type_hints ForwardRef get_annotations singledispatch make_dataclass",
        "turns text into code": "compile",
        "makes a type from values": "__class_getitem__ __prepare__ __mro_entries__",
        "imports without an import statement": "__import__ exec_module load_module import_module run_module run_path",
        "opens files": "open fdopen",
        "reads files": """read_text read_bytes fromfile memmap from_file from_json_file _dict_from_json_file load_file
            loadtxt genfromtxt""",
        "reads files or pickles": "load loads serialization",
        "writes files": """write_text write_bytes tofile dump dumps save savez savetxt save_file save_model
            save_vocabulary save_chat_templates save_distributed_checkpoint _save_pretrained
            to_csv to_pickle""",
        "changes files": "unlink rmtree rmdir mkdir makedirs rename symlink_to chmod",
        "reaches memory that files can be mapped to": "storage untyped_storage UntypedStorage TypedStorage data_ptr",
        "downloads files": """hf_hub_download snapshot_download load_state_dict_from_url urlopen urlretrieve
            cached_files download_url_to_file _get_config_dict _from_pretrained _load_pretrained_model model_zoo""",
        "uploads files": """push_to_hub upload_file upload_folder create_repo create_commit""",
        "downloads and runs code": """hub load_adapter set_attn_implementation set_experts_implementation
            set_use_kernels kernelize get_kernel _from_config dynamic_module_utils""",
        "compiles and loads code": "cpp_extension load_inline load_library",
        "loads a model by its name": "pipeline PeftModel AutoPeftModel load_dataset",
        "copies code": "register_for_auto_class",
        "starts programs": "system popen Popen check_output check_call spawn fork",
        "starts a debugger": "breakpoint set_trace",
        "reaches the network": "httpx requests socket urllib aiohttp http urllib3 httpcore ftplib smtplib",
        "reaches files and programs": """os io sys pathlib importlib pickle subprocess shutil tempfile multiprocessing
            threading marshal runpy ctypes""",
        "hides which attribute it reads": "attrgetter methodcaller format_map __getattribute__ __getattr__",
        "reaches interpreter internals": """globals locals dir memoryview builtins gc currentframe getmodule
            __annotate__ __annotations__ __base__ __bases__ __builtins__ __closure__ __code__ __defaults__ __delattr__
            __dict__ __file__ __func__ __get__ __globals__ __instancecheck__ __kwdefaults__ __loader__ __match_args__
            __objclass__ __reduce__ __reduce_ex__ __self__ __setattr__ __spec__ __subclasses__ __traceback__
            __type_params__ __wrapped__ ag_code ag_frame cr_code cr_frame f_back f_builtins f_code f_globals f_locals
            gi_code gi_frame tb_frame tb_next""",
    }.items()
    for name in names.split()
}
# Options of any function, and keys of any dictionary.
OPTIONS = {
    "trust_remote_code": "trusts other repositories",
    "custom_generate": "downloads and runs code",
    "use_kernels": "downloads and runs code",
    "kernel_config": "downloads and runs code",
    "eval_str": "runs text as code",
    "base_model_name_or_path": "loads another repository",
}
# Attributes that decide what is loaded, and so must not be set.
SETTINGS = {
    **dict.fromkeys(
        ("_attn_implementation", "_attn_implementation_internal", "attn_implementation"), "chooses kernels"
    ),
    **dict.fromkeys(("name_or_path", "_name_or_path", "auto_map", "_auto_class"), "chooses what is loaded"),
}
# The one attention that code may choose: the zoo's own, which `modeling/packing.py` registers.
OWN_ATTENTION = "csezoo_packed"
# Builtins that are safe only with some arguments, and what is wrong with other arguments.
CALLED = {
    "getattr": "hides which attribute it reads",
    "setattr": "hides which attribute it sets",
    "vars": "reaches interpreter internals",
    "type": "makes a class from values",
}
# Imported names that are safe only in one place, and what is wrong elsewhere: see `in_their_place`.
PLACES = {
    "functools.wraps": "copies attributes, which it can be told by text",
    **dict.fromkeys(("abc.ABCMeta", "typing.NamedTuple", "typing.TypedDict"), CALLED["type"]),
}
SHOWING = {"isinstance", "issubclass", "getattr", "hasattr", "str", "repr"}  # these may be given a class


def pattern(names: str) -> re.Pattern[str]:
    """Return a pattern that matches each of these names."""
    return re.compile("|".join(names.split()) or "(?!)")


def in_their_place(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the parts of a node where a name of `PLACES` is safe: decorators, and what a class is derived from."""
    match node:
        case ast.FunctionDef(decorator_list=decorators):
            calls = (one for one in decorators if isinstance(one, ast.Call))
            yield from (call.func for call in calls if len(call.args) == 1 and not call.keywords)
        case ast.ClassDef(bases=bases, keywords=keywords):
            yield from bases
            yield from (keyword.value for keyword in keywords)


def classes_in_use(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the parts of a node where the class of an object is safe.

    If the object is a class, its class makes classes from values. It may be called with one or two arguments, compared
    and shown.
    """
    match node:
        case ast.Attribute(value=value) | ast.FormattedValue(value=value) | ast.Subscript(slice=value):
            yield value
        case ast.Compare(left=left, comparators=others):
            yield from (left, *others)
        case ast.Call(func=function, args=arguments):
            if len(arguments) < 3 and not any(isinstance(one, ast.Starred) for one in arguments):
                yield function
            if isinstance(function, ast.Name) and function.id in SHOWING:
                yield from arguments
