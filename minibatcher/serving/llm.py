"""`LLM` : le moteur complet derrière l'interface hors ligne de vLLM (`vllm/entrypoints/llm.py`).

Mêmes noms, mêmes champs de sortie : un programme écrit pour `vllm.LLM` n'a que sa ligne d'import à changer.
"""

import itertools
import os
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tqdm.auto import tqdm

from minibatcher.engine import EngineCore
from minibatcher.errors import ConfigError, InvalidRequestError, UnknownOptionsRefused, require_int
from minibatcher.kv_cache import KVCacheManager, cache_num_blocks
from minibatcher.model.config import ModelConfig
from minibatcher.model.decoder import Decoder
from minibatcher.model.executor import ModelExecutor
from minibatcher.model.weights import load_tokenizer, load_weights, resolve_model
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.scheduler import Scheduler, SchedulerConfig
from minibatcher.serving.detokenizer import Detokenizer

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
DEFAULT_CPU_CACHE_BYTES = 2 * 2**30


@dataclass
class EngineConfig(UnknownOptionsRefused):
    """Options de `LLM`, aux noms de vLLM.

    - `model` : dossier Hugging Face, identifiant du hub, ou `"smollm2"`, le modèle embarqué ;
    - `dtype` : `"auto"` (float32 sur CPU, float16 sur GPU), `"float32"`, `"float16"`, `"bfloat16"` ;
    - `device` : `"auto"`, `"cpu"`, `"cuda"` ;
    - `max_num_seqs`, `max_num_batched_tokens`, `enable_chunked_prefill` : voir `SchedulerConfig` ;
    - `max_model_len` : longueur maximale d'une séquence (`None` : celle du modèle) ;
    - `block_size` : tokens par bloc de cache ;
    - `kv_cache_memory` : taille du cache, en octets ; à défaut, `gpu_memory_utilization` : part de la mémoire de l'appareil que
      poids et cache peuvent occuper (sans l'un ni l'autre : 0,9 sur GPU, un cache de 2 Gio au plus sur CPU) ;
    - `enable_prefix_caching` : réutiliser les préfixes déjà calculés ;
    - `seed` : graine des requêtes qui n'en donnent pas.
    """

    model: str | os.PathLike = "smollm2"
    dtype: str | torch.dtype = "auto"
    device: str = "auto"
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float | None = None
    kv_cache_memory: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("max_num_seqs", self.max_num_seqs, 1)
        require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        require_int("block_size", self.block_size, 1)
        require_int("seed", self.seed, 0)
        if self.max_model_len is not None:
            require_int("max_model_len", self.max_model_len, 2)
        if self.kv_cache_memory is not None:
            require_int("kv_cache_memory", self.kv_cache_memory, 1)
        fraction = self.gpu_memory_utilization
        if fraction is not None and not (isinstance(fraction, (int, float)) and 0 < fraction <= 1):
            raise ConfigError(f"gpu_memory_utilization vaut {fraction!r} : donnez un nombre entre 0 (exclu) et 1.")
        if not (self.dtype == "auto" or self.dtype in DTYPES or self.dtype in DTYPES.values()):
            raise ConfigError(f"dtype {self.dtype!r} inconnu. Dtypes connus : auto, {', '.join(DTYPES)}.")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"device {self.device!r} inconnu. Appareils connus : auto, cpu, cuda.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device='cuda', mais torch ne voit aucun GPU. Prenez device='cpu', ou vérifiez le pilote NVIDIA.")

    def resolve_device(self) -> torch.device:
        return torch.device("cuda" if self.device == "auto" and torch.cuda.is_available() else self.device.replace("auto", "cpu"))

    def resolve_dtype(self, device: torch.device) -> torch.dtype:
        if self.dtype == "auto":
            return torch.float32 if device.type == "cpu" else torch.float16
        return DTYPES.get(self.dtype, self.dtype)


@dataclass
class CompletionOutput:
    """Une réponse. `stop_reason` : la chaîne ou le token qui l'a arrêtée ; `error` : ce qui a échoué, si `finish_reason` vaut « error »."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """Tout ce qu'une requête a produit jusqu'ici, une `CompletionOutput` par réponse demandée (`n`)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None


@dataclass
class _Sequence:
    """Une des `n` réponses d'une requête."""

    request: Request
    detokenizer: Detokenizer
    stop_reason: int | str | None = None


@dataclass
class _Group:
    """Une requête telle que soumise : ses `n` séquences avancent séparément dans le moteur."""

    request_id: str
    prompt: str | None
    sequences: list[_Sequence] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return all(sequence.request.is_finished for sequence in self.sequences)


class LLM:
    """Un modèle prêt à servir.

    `LLM(model, **options)` : voir `EngineConfig`. Lève `ModelError` (modèle introuvable, incomplet, inconnu) ou `ConfigError`
    (réglage impossible). `engine.events` est le journal de tous les pas.
    """

    def __init__(self, model: str | os.PathLike = "smollm2", **options: Any) -> None:
        self.config = config = EngineConfig(model=model, **options)
        folder = resolve_model(config.model)
        self.model_config = model_config = ModelConfig.from_folder(folder)
        self.device = device = config.resolve_device()
        self.dtype = dtype = config.resolve_dtype(device)
        limit = model_config.max_position_embeddings
        max_model_len = config.max_model_len or limit
        if max_model_len > limit:
            raise ConfigError(f"max_model_len = {max_model_len} dépasse ce que le modèle connaît : {limit} positions.")
        scheduler_config = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=config.enable_chunked_prefill,
        )
        # Le cache se vérifie avant de charger quoi que ce soit : une erreur de réglage se voit tout de suite.
        bytes_per_token = model_config.kv_elements_per_token * dtype.itemsize
        num_blocks = self._num_blocks(bytes_per_token, max_model_len)
        self.tokenizer = load_tokenizer(folder)
        weights = load_weights(folder, model_config, dtype, device)
        decoder = Decoder(model_config, weights, max_model_len, config.block_size)
        manager = KVCacheManager(num_blocks, config.block_size, config.enable_prefix_caching)
        self.engine = EngineCore(Scheduler(scheduler_config, manager), ModelExecutor(decoder, num_blocks))
        self._groups: dict[str, _Group] = {}
        self._owners: dict[str, tuple[_Group, _Sequence]] = {}
        self._seeds = random.Random(config.seed)
        self._counter = itertools.count()

    def _num_blocks(self, bytes_per_token: int, max_model_len: int) -> int:
        config = self.config
        block_bytes = bytes_per_token * config.block_size
        # Au-delà d'une séquence entière par place, un bloc de plus ne servirait qu'au cache de préfixe.
        useful = config.max_num_seqs * -(-max_model_len // config.block_size) * block_bytes
        if config.kv_cache_memory is not None:
            cache_bytes = config.kv_cache_memory
        elif self.device.type == "cpu" and config.gpu_memory_utilization is None:
            cache_bytes = min(DEFAULT_CPU_CACHE_BYTES, useful)
        else:
            weights_bytes = self.model_config.num_parameters * self.dtype.itemsize
            budget = device_memory(self.device) * (config.gpu_memory_utilization or 0.9)
            cache_bytes = max(0, min(int(budget) - weights_bytes, useful))
        return cache_num_blocks(cache_bytes, bytes_per_token, config.block_size, max_model_len)

    # Hors ligne : une liste de prompts, une liste de réponses.

    def generate(
        self,
        prompts: str | dict | Sequence[str | dict],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Répond à tous les prompts ; rend les réponses dans l'ordre des prompts.

        Un prompt est un texte, `{"prompt": texte}` ou `{"prompt_token_ids": [...]}`. Lève `InvalidRequestError` avant tout calcul
        si l'un d'eux ne peut pas être servi. Ctrl-C annule ces requêtes et laisse le moteur utilisable.
        """
        prompts = [prompts] if isinstance(prompts, (str, dict)) else list(prompts)
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or SamplingParams()] * len(prompts)
        else:
            params = list(sampling_params)
        if len(params) != len(prompts):
            raise InvalidRequestError(
                f"{len(prompts)} prompts, mais {len(params)} sampling_params : donnez-en un par prompt, ou un seul."
            )
        groups: list[_Group] = []
        try:
            for number, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
                try:
                    groups.append(self._submit(self._new_id(), prompt, param))
                except InvalidRequestError as problem:
                    raise InvalidRequestError(f"Prompt n° {number + 1} : {problem}") from None
            self._run(groups, use_tqdm)
            return [self._output(group, final=True) for group in groups]
        finally:
            self.abort(group.request_id for group in groups)

    def chat(
        self,
        messages: Sequence[dict] | Sequence[Sequence[dict]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Comme `generate`, pour une conversation (liste de `{"role": …, "content": …}`) ou plusieurs."""
        messages = list(messages)
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [{"prompt_token_ids": self.apply_chat_template(conversation)} for conversation in conversations]
        return self.generate(prompts, sampling_params, use_tqdm)

    def apply_chat_template(self, conversation: Sequence[dict]) -> list[int]:
        """Les tokens d'une conversation, jusqu'à l'endroit où l'assistant prend la parole."""
        if self.tokenizer.chat_template is None:
            raise InvalidRequestError("Ce modèle n'a pas de gabarit de conversation : utilisez generate() avec un texte.")
        if not conversation:
            raise InvalidRequestError("La conversation est vide : donnez au moins un message.")
        for message in conversation:
            if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
                raise InvalidRequestError(f"Message mal formé : {message!r}. Attendu : {{'role': …, 'content': …}}.")
        try:
            encoded = self.tokenizer.apply_chat_template(list(conversation), add_generation_prompt=True, return_dict=True)
        except Exception as problem:  # le gabarit est un programme Jinja du modèle : il peut tout refuser
            raise InvalidRequestError(f"Le gabarit de conversation du modèle refuse ces messages : {problem}") from None
        return list(encoded["input_ids"])

    # Au fil de l'eau : soumettre, avancer pas à pas, annuler.

    def add_request(self, request_id: str, prompt: str | dict, sampling_params: SamplingParams | None = None) -> None:
        """Soumet une requête, que `step` fera avancer. Lève `InvalidRequestError` si elle ne peut pas être servie."""
        self._submit(request_id, prompt, sampling_params or SamplingParams())

    def step(self) -> list[RequestOutput]:
        """Un pas du moteur ; rend l'état de chaque requête qui a avancé, texte compris."""
        touched = self._step(stream=True)
        outputs = [self._output(group) for group in touched]
        for group in touched:
            if group.finished:
                self._forget(group)
        return outputs

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """Annule des requêtes ; leurs blocs sont rendus. Sans effet sur celles qui sont finies ou inconnues."""
        for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            group = self._groups.get(request_id)
            if group is not None:
                self.engine.abort(sequence.request.request_id for sequence in group.sequences)
                self._forget(group)

    def has_unfinished_requests(self) -> bool:
        return self.engine.has_unfinished_requests

    def reset_prefix_cache(self) -> None:
        """Oublie tous les préfixes en cache."""
        self.engine.scheduler.kv_cache_manager.reset_prefix_cache()

    # Mécanique.

    def _new_id(self) -> str:
        return next(name for name in map(str, self._counter) if name not in self._groups)

    def _encode(self, prompt: str | dict) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        if isinstance(prompt, dict) and isinstance(prompt.get("prompt"), str):
            return prompt["prompt"], self.tokenizer.encode(prompt["prompt"])
        if not isinstance(prompt, dict) or "prompt_token_ids" not in prompt:
            raise InvalidRequestError(
                f"Prompt de type {type(prompt).__name__} : donnez un texte, {{'prompt': texte}} ou {{'prompt_token_ids': [...]}}."
            )
        token_ids, vocab_size = list(prompt["prompt_token_ids"]), self.model_config.vocab_size
        bad = [t for t in token_ids if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < vocab_size]
        if bad:
            raise InvalidRequestError(f"Token {bad[0]!r} impossible : ce modèle connaît les entiers de 0 à {vocab_size - 1}.")
        return None, token_ids

    def _submit(self, request_id: str, prompt: str | dict, params: SamplingParams) -> _Group:
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"sampling_params doit être un SamplingParams, et non {type(params).__name__}.")
        if request_id in self._groups:
            raise InvalidRequestError(f"La requête {request_id!r} est déjà en cours : donnez un autre identifiant.")
        text, token_ids = self._encode(prompt)
        unknown = [token for token in params.stop_token_ids if token >= self.model_config.vocab_size]
        if unknown:
            raise InvalidRequestError(f"stop_token_ids contient {unknown[0]}, hors du vocabulaire du modèle.")
        group = _Group(request_id, text)
        base_seed = self._seeds.getrandbits(48) if params.seed is None else params.seed
        try:
            for index in range(params.n):
                child_params = replace(params, seed=base_seed + index)
                child_id = request_id if params.n == 1 else f"{request_id}#{index}"
                request = Request(child_id, token_ids, child_params, list(self.model_config.eos_token_ids))
                self.engine.add_request(request)
                sequence = _Sequence(request, Detokenizer(self.tokenizer, params.stop, params.min_tokens))
                group.sequences.append(sequence)
                self._owners[child_id] = (group, sequence)
        except InvalidRequestError:
            self.engine.abort(sequence.request.request_id for sequence in group.sequences)
            self._forget(group)
            raise
        self._groups[request_id] = group
        return group

    def _forget(self, group: _Group) -> None:
        self._groups.pop(group.request_id, None)
        for sequence in group.sequences:
            self._owners.pop(sequence.request.request_id, None)

    def _step(self, stream: bool) -> list[_Group]:
        """Un pas, puis les chaînes d'arrêt. Sans `stream`, seules les requêtes qui en ont sont décodées en texte."""
        self.engine.step()
        touched: dict[str, _Group] = {}
        event = self.engine.events[-1]
        for request_id in [*event.sampled, *event.finished]:
            group, sequence = self._owners[request_id]
            touched[group.request_id] = group
            if stream or sequence.request.sampling_params.stop:
                self._detokenize(sequence)
        return list(touched.values())

    def _detokenize(self, sequence: _Sequence) -> None:
        request, detokenizer = sequence.request, sequence.detokenizer
        start = request.num_prompt_tokens + len(detokenizer.token_ids)
        if sequence.stop_reason is not None or start == request.num_tokens:
            return
        tokens = request.token_ids[start:]
        if request.finish_reason is FinishReason.STOP:
            tokens = tokens[:-1]  # le token d'arrêt termine la réponse sans en faire partie
        found = detokenizer.push(tokens)
        if found is not None:
            sequence.stop_reason = found
            if self.engine.finish(request.request_id, FinishReason.STOP) is None:
                request.finish_reason = FinishReason.STOP  # le même token terminait déjà la réponse, par sa longueur

    def _run(self, groups: list[_Group], use_tqdm: bool) -> None:
        pending = {group.request_id for group in groups}
        start, produced = time.perf_counter(), 0
        with tqdm(total=len(groups), desc="Requêtes", unit="req", disable=not use_tqdm) as bar:
            while pending:
                for group in self._step(stream=False):
                    produced += len(group.sequences)
                    if group.finished and group.request_id in pending:
                        pending.discard(group.request_id)
                        bar.update()
                bar.set_postfix_str(f"{produced / (time.perf_counter() - start):.0f} tokens/s", refresh=False)

    def _output(self, group: _Group, final: bool = False) -> RequestOutput:
        outputs = []
        for index, sequence in enumerate(group.sequences):
            request = sequence.request
            finished = request.is_finished
            if finished or final:
                self._detokenize(sequence)
                if sequence.stop_reason is None:
                    sequence.detokenizer.finish()
                    if request.finish_reason is FinishReason.STOP:
                        last = request.token_ids[-1]
                        sequence.stop_reason = None if last in self.model_config.eos_token_ids else last
            logprobs = request.logprobs if request.sampling_params.logprobs is not None else None
            for entry in logprobs or ():
                for token_id, logprob in entry.items():
                    logprob.decoded_token = self.tokenizer.decode([token_id])
            token_ids = request.output_token_ids
            outputs.append(
                CompletionOutput(
                    index=index,
                    text=sequence.detokenizer.visible(finished),
                    token_ids=token_ids,
                    cumulative_logprob=None
                    if logprobs is None
                    else sum(entry[token].logprob for entry, token in zip(logprobs, token_ids, strict=True)),
                    logprobs=logprobs,
                    finish_reason=request.finish_reason.value if finished else None,
                    stop_reason=sequence.stop_reason,
                    error=request.error,
                )
            )
        first = group.sequences[0].request
        return RequestOutput(
            group.request_id, group.prompt, first.prompt_token_ids, outputs, group.finished, first.num_cached_tokens
        )


def device_memory(device: torch.device) -> int:
    """Mémoire de l'appareil, en octets. `ConfigError` si le système ne la donne pas."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        raise ConfigError("Ce système ne dit pas combien de mémoire il a : donnez kv_cache_memory, en octets.") from None
