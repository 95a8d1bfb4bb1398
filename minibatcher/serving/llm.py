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

from tqdm.auto import tqdm

from minibatcher.engine import EngineCore
from minibatcher.errors import ConfigError, InvalidRequestError
from minibatcher.interruption import Uninterrupted
from minibatcher.kv_cache import KVCacheManager
from minibatcher.model.config import ModelConfig
from minibatcher.model.decoder import Decoder
from minibatcher.model.executor import ModelExecutor
from minibatcher.model.weights import load_tokenizer, load_weights, resolve_model
from minibatcher.policies import get_scheduler_cls
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.scheduler import SchedulerConfig
from minibatcher.serving.config import EngineConfig, choose_num_blocks
from minibatcher.serving.detokenizer import Detokenizer
from minibatcher.serving.outputs import CompletionOutput, RequestOutput


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
        num_blocks = choose_num_blocks(config, model_config, max_model_len, dtype, device)
        manager = KVCacheManager(num_blocks, config.block_size, config.enable_prefix_caching)
        scheduler = get_scheduler_cls(config.scheduler_cls)(scheduler_config, manager)
        self.tokenizer = load_tokenizer(folder)
        weights = load_weights(folder, model_config, dtype, device)
        decoder = Decoder(model_config, weights, max_model_len, config.block_size)
        self.engine = EngineCore(scheduler, ModelExecutor(decoder, num_blocks))
        self._groups: dict[str, _Group] = {}
        self._owners: dict[str, tuple[_Group, _Sequence]] = {}
        self._undelivered: dict[str, _Group] = {}
        self._seeds = random.Random(config.seed)
        self._counter = itertools.count()

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
        prompts = (
            [prompts]
            if isinstance(prompts, (str, dict))
            else as_list(prompts, "prompts doit être un prompt ou une liste de prompts")
        )
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or SamplingParams()] * len(prompts)
        else:
            params = as_list(sampling_params, "sampling_params doit être un SamplingParams ou une liste de SamplingParams")
        if len(params) != len(prompts):
            raise InvalidRequestError(
                f"{len(prompts)} prompts, mais {len(params)} sampling_params : donnez-en un par prompt, ou un seul."
            )
        groups: list[_Group] = []
        try:
            for number, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
                try:
                    with Uninterrupted():
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
        messages = as_list(messages, "messages doit être une liste de {'role': …, 'content': …}, ou une liste de telles listes")
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = []
        for number, conversation in enumerate(conversations):
            try:
                text = self.apply_chat_template(conversation)
            except InvalidRequestError as problem:
                raise InvalidRequestError(f"Conversation n° {number + 1} : {problem}") from None
            # Le gabarit a déjà écrit les tokens spéciaux : ne pas les ajouter une seconde fois.
            prompts.append({"prompt": text, "prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(prompts, sampling_params, use_tqdm)

    def apply_chat_template(self, conversation: Sequence[dict]) -> str:
        """Le texte d'une conversation mise en forme, jusqu'à l'endroit où l'assistant prend la parole."""
        if self.tokenizer.chat_template is None:
            raise InvalidRequestError("Ce modèle n'a pas de gabarit de conversation : utilisez generate() avec un texte.")
        conversation = as_list(conversation, "Une conversation est une liste de {'role': …, 'content': …}")
        if not conversation:
            raise InvalidRequestError("La conversation est vide : donnez au moins un message.")
        for message in conversation:
            if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
                raise InvalidRequestError(f"Message mal formé : {message!r}. Attendu : {{'role': …, 'content': …}}.")
        try:
            return self.tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        except Exception as problem:  # le gabarit est un programme Jinja du modèle : il peut tout refuser
            raise InvalidRequestError(
                f"Le gabarit de conversation du modèle refuse ces messages ({problem}). Vérifiez leurs rôles et leur ordre."
            ) from None

    # Au fil de l'eau : soumettre, avancer pas à pas, annuler.

    def add_request(self, request_id: str, prompt: str | dict, sampling_params: SamplingParams | None = None) -> None:
        """Soumet une requête, que `step` fera avancer. Lève `InvalidRequestError` si elle ne peut pas être servie."""
        self._submit(request_id, prompt, sampling_params or SamplingParams())

    def step(self) -> list[RequestOutput]:
        """Un pas du moteur ; rend l'état de chaque requête qui a avancé, texte compris."""
        touched = dict(self._undelivered)
        if self.engine.has_unfinished_requests:
            touched.update(self._step(stream=True))
        self._undelivered = {}
        outputs = [self._output(group) for group in touched.values()]
        for group in touched.values():
            if group.finished:
                self._forget(group)
        return outputs

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """Annule des requêtes ; leurs blocs sont rendus. Sans effet sur celles qui sont finies ou inconnues."""
        for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            group = self._groups.get(request_id)
            if group is not None:
                with Uninterrupted():
                    self.engine.abort(sequence.request.request_id for sequence in group.sequences)
                    self._forget(group)

    def has_unfinished_requests(self) -> bool:
        return self.engine.has_unfinished_requests or bool(self._undelivered)

    def reset_prefix_cache(self) -> None:
        """Oublie tous les préfixes en cache."""
        self.engine.reset_prefix_cache()

    # Mécanique.

    def _new_id(self) -> str:
        return next(name for name in map(str, self._counter) if name not in self._groups)

    def _encode(self, prompt: str | dict) -> tuple[str | None, list[int]]:
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        has_ids = isinstance(prompt, dict) and "prompt_token_ids" in prompt
        if has_ids:
            token_ids = as_list(prompt["prompt_token_ids"], "prompt_token_ids doit être une liste d'entiers")
        elif isinstance(text, str):
            token_ids = self.tokenizer.encode(text)
        else:
            raise InvalidRequestError(
                f"Prompt de type {type(prompt).__name__} : donnez un texte, {{'prompt': texte}} ou {{'prompt_token_ids': [...]}}."
            )
        vocab_size = self.model_config.vocab_size
        bad = [t for t in token_ids if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < vocab_size]
        if bad:
            raise InvalidRequestError(f"Token {bad[0]!r} impossible : ce modèle connaît les entiers de 0 à {vocab_size - 1}.")
        return text, token_ids

    def _submit(self, request_id: str, prompt: str | dict, params: SamplingParams) -> _Group:
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"sampling_params doit être un SamplingParams, et non {type(params).__name__}.")
        if not isinstance(request_id, str):
            raise InvalidRequestError(f"request_id doit être une chaîne, et non {request_id!r}.")
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
        self._undelivered.pop(group.request_id, None)
        for sequence in group.sequences:
            self._owners.pop(sequence.request.request_id, None)

    def _step(self, stream: bool) -> dict[str, _Group]:
        """Un pas, puis les chaînes d'arrêt ; rend ce qui a avancé. Sans `stream`, seul le texte qui en a besoin est décodé."""
        self.engine.step()
        touched: dict[str, _Group] = {}
        event = self.engine.events[-1]
        for request_id in dict.fromkeys([*event.sampled, *event.finished]):
            group, sequence = self._owners[request_id]
            touched[group.request_id] = group
            if stream or sequence.request.sampling_params.stop:
                self._detokenize(sequence)
        return touched

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
                for request_id, group in self._step(stream=False).items():
                    produced += len(group.sequences)
                    if request_id not in pending:
                        self._undelivered[request_id] = group  # soumise par add_request : le prochain step() la rendra
                    elif group.finished:
                        pending.discard(request_id)
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


def as_list(value: object, expected: str) -> list:
    """`value` en liste ; `InvalidRequestError` si ce n'est pas une collection (`expected` dit ce qu'il fallait donner)."""
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        raise InvalidRequestError(f"{expected}, et non {value!r} ({type(value).__name__}).")
    return list(value)
