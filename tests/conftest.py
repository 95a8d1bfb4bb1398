"""Les modèles dont les tests se servent : de minuscules, fabriqués sur place avec transformers, et le modèle embarqué."""

import functools
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from minibatcher.model.embedded import ensure_embedded_model

# Les mêmes exemples à chaque fois, et aucun verdict qui dépende du temps que met une machine occupée.
hypothesis.settings.register_profile(
    "minibatcher", deadline=None, derandomize=True, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("minibatcher")

CORPUS = (
    "Le continuous batching sert plusieurs requêtes à la fois : chacune avance d'un token par pas, et la place d'une réponse "
    "finie est donnée aussitôt à la suivante. Été, où, cœur, naïf, 12 €, 日本語 🙂🙃."
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] + ' : ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant : {% endif %}"
)


def save_tiny_tokenizer(folder: Path) -> int:
    """Un BPE d'octets à deux tokens spéciaux, `<s>` (0) et `</s>` (1), appris sur une phrase ; rend la taille du vocabulaire."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def save_tiny_model(
    folder: Path,
    architecture: str = "Llama",
    head_dim: int = 32,
    num_kv_heads: int = 2,
    group: int = 2,
    tied: bool = False,
    bias: bool = False,
    rope_scaling: dict | None = None,
    num_shards: int = 1,
) -> None:
    """Écrit dans `folder` un modèle aléatoire de deux couches, toujours le même, dont les choix greedy sont nets.

    `group` : têtes de requête par tête KV ; `bias` : biais des quatre projections de l'attention (Llama, Qwen3).
    """
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=save_tiny_tokenizer(folder),
        hidden_size=84,  # un multiple de 2, 3, 4, 6 et 14 têtes
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=num_kv_heads * group,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, **(rope_scaling or {})},
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        **({} if architecture == "Qwen2" else {"attention_bias": bias}),
    )
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # y compris q_norm et k_norm : loin de 1, pour que les oublier se voie
                weight.uniform_(0.5, 1.5, generator=generator)
            elif name.endswith("bias"):
                weight.normal_(0, 0.5, generator=generator)
            else:  # bien plus que l'initialisation habituelle : les logits s'écartent, le contexte compte
                weight.normal_(0, 1.5 / weight.shape[1] ** 0.5, generator=generator)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    model.save_pretrained(folder, max_shard_size=size // num_shards + 1)


class Reference:
    """transformers, une séquence à la fois."""

    def __init__(self, folder: Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None  # ignorer la fin ; min_new_tokens, lui, interdirait le token

    @torch.inference_mode()
    def logits(self, prompt_token_ids: list[int], output_token_ids: Sequence[int]) -> torch.Tensor:
        """Les logits avant chaque token de la réponse, `[len(réponse), vocab_size]`."""
        logits = self.model(torch.tensor([[*prompt_token_ids, *output_token_ids]])).logits[0]
        return logits[len(prompt_token_ids) - 1 : -1]

    def greedy(self, prompt_token_ids: list[int], num_tokens: int, draft: Sequence[int] = ()) -> tuple[list[int], list[float]]:
        """Les tokens greedy, fin ignorée, et l'écart entre les deux meilleurs logits à chaque position.

        `draft` : une réponse supposée, que le modèle relit d'un coup. Ce qu'il aurait choisi lui-même est gardé, jusqu'au premier
        désaccord compris ; la suite est produite token par token. Une fausse supposition ne coûte que du temps.
        """
        token_ids: list[int] = []
        gaps: list[float] = []
        if draft:
            best = self.logits(prompt_token_ids, draft).topk(2)
            token_ids, gaps = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
            agreed = next((i for i, pair in enumerate(zip(token_ids, draft, strict=True)) if pair[0] != pair[1]), len(draft))
            del token_ids[agreed + 1 :], gaps[agreed + 1 :]
        if len(token_ids) < num_tokens:
            known = torch.tensor([prompt_token_ids + token_ids])
            out = self.model.generate(
                known,
                attention_mask=torch.ones_like(known),
                do_sample=False,
                max_new_tokens=num_tokens - len(token_ids),
                output_logits=True,
                return_dict_in_generate=True,
            )
            best = torch.cat(out.logits).topk(2).values
            token_ids += out.sequences[0, known.shape[1] :].tolist()
            gaps += (best[:, 0] - best[:, 1]).tolist()
        return token_ids, gaps


@pytest.fixture(autouse=True)
def one_thread_for_tiny_models(request):
    """À plusieurs, les threads passeraient leur temps à s'attendre : dix fois plus lent si la machine a autre chose à faire."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1 if "tiny_model" in request.fixturenames else num_threads)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_raises():
    """Lancé en arrière-plan, un processus hérite d'un SIGINT ignoré : les tests de Ctrl-C veulent celui d'un terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Callable[..., Path]:
    """`tiny_model(**réglages)` : le dossier d'un petit modèle (`save_tiny_model`), fabriqué une fois par jeu de réglages."""
    made: dict[str, Path] = {}

    def make(**settings) -> Path:
        key = json.dumps(settings, sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("petit-modele")
            save_tiny_model(made[key], **settings)
        return made[key]

    return make


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], Reference]:
    """`reference(dossier)` : transformers sur ce modèle, chargé une fois."""
    return functools.cache(Reference)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Le dossier du modèle embarqué."""
    return ensure_embedded_model()


_near_ties = pytest.StashKey[dict[str, tuple[int, int]]]()


@pytest.fixture(scope="session")
def accepted_near_ties(pytestconfig) -> dict[str, tuple[int, int]]:
    """Par combinaison : désaccords admis, réponses comparées. Le bilan s'affiche à la fin des tests."""
    return pytestconfig.stash.setdefault(_near_ties, {})


def pytest_terminal_summary(terminalreporter, config) -> None:
    for name, (ties, total) in config.stash.get(_near_ties, {}).items():
        terminalreporter.write_line(f"Mêmes mots que transformers, {name} : {ties} désaccord(s) admis sur {total} réponses.")
