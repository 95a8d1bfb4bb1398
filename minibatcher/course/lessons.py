"""La liste des carnets : leur ordre, ce que chacun construit dans le paquet, ce qu'il demande à la machine.

C'est la seule liste : la construction des carnets, la carte du cours, `minibatcher doctor` et les contrôles de la CI la lisent.
"""

from dataclasses import dataclass, field

from minibatcher.course.tables import Table

ALWAYS_ALLOWED = ("errors", "viz.show", "viz.style", "viz.curves")  # importables partout, comme minibatcher.course
TOOLS = (
    "cli",
    "simulation.command",
    "bench.demo",
    "bench.machine",
    "errors",
)  # modules qu'aucun carnet n'a à expliquer, comme viz et course
_WIDGETS = {"ipywidgets": "des figures fixes à la place des widgets"}


@dataclass(frozen=True)
class Lesson:
    """Un carnet.

    - `id` : le nom du fichier, sans extension ; `title` : la première ligne du carnet (« # … ») ; `purpose` : une ligne ;
    - `introduces` : modules de `minibatcher` qu'il construit (sans le préfixe) : il les cite, les carnets d'avant les ignorent ;
    - `exercise` : identifiant (« ex01 ») ou None ; `task` : ce que l'on y écrit ;
    - `gpu` : « inutile », « utile » ou « nécessaire » ; `without_gpu` : ce que l'on perd sans lui ;
    - `needs` : paquets sans lesquels il ne tourne pas ; `better_with` : paquet souhaitable → ce que l'on a quand il manque ;
    - `written` : la source existe dans notebooks/sources.
    """

    id: str
    title: str
    purpose: str
    introduces: tuple[str, ...] = ()
    exercise: str | None = None
    task: str = ""
    gpu: str = "inutile"
    without_gpu: str = ""
    needs: tuple[str, ...] = ("numpy", "matplotlib")
    better_with: dict[str, str] = field(default_factory=lambda: dict(_WIDGETS))
    written: bool = False

    @property
    def number(self) -> str:
        """Les deux chiffres du carnet : « 01 »."""
        return self.id[:2]


_MODEL = ("numpy", "matplotlib", "torch", "transformers", "safetensors")
_SERVER = (*_MODEL, "fastapi", "uvicorn", "openai")

LESSONS = (
    Lesson(
        "00_accueil",
        "Servir un LLM, pièce par pièce",
        "La machine, la carte du cours, et pourquoi le decode est borné par la mémoire.",
        written=True,
    ),
    Lesson(
        "01_statique_vs_continu",
        "Ne plus attendre le plus lent",
        "Lot statique contre lot continu : rendre chaque slot dès qu'il se libère.",
        ("simulation.slots", "viz.slots", "viz.players", "viz.widgets"),
        exercise="ex01",
        task="Les deux simulateurs : `batching_statique` et `batching_continu`.",
        written=True,
    ),
    Lesson(
        "02_memoire_kv",
        "La mémoire, vrai plafond",
        "Combien de séquences tiennent dans un GPU, et ce que gaspille la réservation contiguë.",
        ("simulation.hardware", "simulation.sheets", "simulation.hub_config", "simulation.memory", "viz.bars"),
        exercise="ex02",
        task="Le calculateur de mémoire : octets par token, séquences qui tiennent, part utile.",
        written=True,
    ),
    Lesson(
        "03_blocs_pagines",
        "Des blocs à la demande",
        "Ranger le cache par blocs, comme un système d'exploitation range la mémoire, et partager les préfixes.",
        ("request", "kv_cache", "viz.blocks"),
        exercise="ex03",
        task="Le gestionnaire de blocs ; le vôtre remplace celui du moteur.",
    ),
    Lesson(
        "04_preemption",
        "Quand il n'y a plus de blocs",
        "Préempter la dernière venue, recalculer plus tard : ce que cela sauve, ce que cela coûte.",
        ("scheduler", "engine", "interruption", "viz.timeline"),
        exercise="ex04",
        task="Un cache limité et la préemption de la plus récente : l'exercice bonus du cours.",
    ),
    Lesson(
        "05_prefill_decode",
        "Un long prompt ne fige plus personne",
        "Prefill et decode dans le même lot, sous un budget de tokens ; mesurer ce que chacun ressent.",
        (
            "policies",
            "metrics",
            "simulation.cost",
            "simulation.executor",
            "simulation.workload",
            "simulation.simulator",
            "simulation.fast_forward",
            "viz.latencies",
            "viz.load",
        ),
        exercise="ex05",
        task="Un pas de scheduler sous un budget de tokens.",
        better_with={**_WIDGETS, "joblib": "des balayages sur un seul cœur"},
    ),
    Lesson(
        "06_modele_pagine",
        "Un vrai modèle lit dans les blocs",
        "Un décodeur en torch et son attention paginée : les mêmes logits que transformers.",
        ("model.config", "model.weights", "model.embedded", "model.decoder", "model.attention"),
        exercise="ex06",
        gpu="utile",
        without_gpu="les mêmes résultats, plus lentement, sur CPU",
        needs=_MODEL,
    ),
    Lesson(
        "07_triton",
        "Un noyau à la vitesse de la mémoire",
        "Écrire en Triton l'attention paginée du decode, et comparer son débit à celui de la mémoire.",
        exercise="ex07",
        gpu="utile",
        without_gpu="des noyaux interprétés : justes, mais dont la vitesse ne dit rien",
        needs=(*_MODEL, "triton"),
    ),
    Lesson(
        "08_moteur",
        "Les mêmes mots, quel que soit le lot",
        "Le moteur complet sur un vrai modèle : schedule, execute, update.",
        (
            "model.executor",
            "model.sampling",
            "model.linear",
            "serving.config",
            "serving.outputs",
            "serving.detokenizer",
            "serving.llm",
            "journal",
            "simulation.replay",
        ),
        exercise="ex08",
        gpu="utile",
        without_gpu="les mêmes mots, plus lentement, sur CPU",
        needs=_MODEL,
    ),
    Lesson(
        "09_serveur",
        "Trente-deux clients, un seul moteur",
        "Un serveur compatible OpenAI : flux, annulation, métriques.",
        exercise="ex09",
        gpu="utile",
        without_gpu="un serveur plus lent, sur CPU",
        needs=_SERVER,
    ),
    Lesson(
        "10_vllm",
        "La même charge, chez vLLM",
        "Transformers, minibatcher et vLLM sur les mêmes prompts, avec le même client.",
        ("bench.prompts", "bench.baselines", "bench.run"),
        exercise="ex10",
        gpu="utile",
        without_gpu="vLLM pour CPU et le petit modèle embarqué",
        needs=_SERVER,
    ),
    Lesson(
        "11_labo_reglage",
        "Prédire, mesurer, choisir",
        "Régler un moteur : chercher au simulateur, vérifier sur la machine.",
        ("simulation.scenario", "simulation.traces"),
        exercise="ex11",
        gpu="utile",
        without_gpu="des mesures sur CPU, avec le petit modèle embarqué",
        needs=_SERVER,
        better_with={**_WIDGETS, "joblib": "des balayages sur un seul cœur"},
    ),
    Lesson(
        "12_aller_plus_loin",
        "Aller plus loin",
        "Décodage spéculatif, prefill et decode séparés, autres moteurs, plusieurs GPU.",
        ("simulation.disaggregated",),
        exercise="ex12",
        gpu="utile",
        without_gpu="les mêmes résultats, plus lentement, sur CPU",
        needs=_MODEL,
    ),
)


def written_lessons() -> tuple[Lesson, ...]:
    """Les carnets déjà écrits, dans l'ordre du cours."""
    return tuple(lesson for lesson in LESSONS if lesson.written)


def course_map() -> Table:
    """La carte du cours, à afficher dans le carnet 00 : un carnet par ligne, et ce qu'il ajoute au paquet."""
    rows = []
    for lesson in LESSONS:
        built = ", ".join(f"`{name}`" for name in lesson.introduces if not name.startswith("viz.")) or "—"
        state = "" if lesson.written else " (à paraître)"
        rows.append((f"`{lesson.id}`", lesson.title + state, lesson.purpose, built, lesson.exercise or "—", lesson.gpu))
    headers = ("carnet", "titre", "l'idée", "construit dans `minibatcher`", "exercice", "GPU")
    return Table("La carte du cours", headers, tuple(rows))


def exercise_table() -> Table:
    """Les exercices, à afficher dans le carnet 00 : où, quoi, et la commande qui vérifie."""
    rows = []
    for lesson in LESSONS:
        if lesson.exercise and lesson.task:
            check = f"`minibatcher check {lesson.exercise}`" if lesson.written else "à paraître"
            rows.append((f"`{lesson.exercise}`", lesson.number, lesson.task, check))
    return Table("Les exercices", ("exercice", "carnet", "ce que vous écrivez", "vérifier dans un terminal"), tuple(rows))
