"""La charge de démonstration : huit sujets, chacun demandé de quatre façons.

Trente-deux prompts différents, pour que le cache de préfixe n'embellisse pas les débits : seuls les quelques tokens du
gabarit de conversation sont communs.
"""

SUBJECTS = (
    "la photosynthèse",
    "la Révolution française",
    "les trous noirs",
    "la recette du pain",
    "le fonctionnement d'un moteur électrique",
    "la migration des oiseaux",
    "l'invention de l'imprimerie",
    "le cycle de l'eau",
)

WORDINGS = (
    "Expliquez {subject} à un enfant de dix ans.",
    "En cinq phrases, que faut-il savoir sur {subject} ?",
    "Écrivez l'introduction d'un exposé sur {subject}, avec un exemple concret.",
    "Posez puis résolvez trois questions d'examen qui portent sur {subject}.",
)


def demo_prompts() -> list[str]:
    """Les 32 prompts de `minibatcher demo`, un sujet après l'autre."""
    return [wording.format(subject=subject) for subject in SUBJECTS for wording in WORDINGS]


def demo_messages() -> list[list[dict[str, str]]]:
    """Les mêmes prompts, sous forme de conversations d'un message (`{"role": "user", "content": …}`)."""
    return [[{"role": "user", "content": prompt}] for prompt in demo_prompts()]
