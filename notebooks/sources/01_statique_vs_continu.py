# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Ne plus attendre le plus lent
#
# **Dans ce carnet**, vous allez :
#
# 1. mesurer pourquoi servir trente-deux personnes ne coûte pas trente-deux fois plus qu'en servir une ;
# 2. voir un lot statique gâcher la moitié de cet avantage ;
# 3. remplacer chaque réponse finie à l'instant où elle finit, et compter ce qu'on y gagne ;
# 4. écrire vous-même les deux simulateurs.
#
# Durée : 45 minutes. Aucun GPU. Il suffit de savoir ce qu'est le KV cache ([carnet 00](00_accueil.ipynb)).

# %% tags=["mise-en-place"]

# %% [markdown]
# ## Un pas coûte le prix des poids
#
# Pour produire un token, un LLM relit **tous ses poids** dans la mémoire. Combien de temps cela prend-il ? Prenons un modèle de
# 8 milliards de paramètres en FP16, sur un H100 dont la mémoire débite 3,35 To/s (fiche technique de NVIDIA).

# %%
num_parameters = 8e9
weight_bytes = num_parameters * 2            # FP16 : deux octets par paramètre
bandwidth = 3.35e12                          # octets par seconde
read_s = weight_bytes / bandwidth
print(f"{weight_bytes / 1e9:.0f} Go à relire : {1000 * read_s:.1f} ms par token")

# %% [markdown]
# Et le calcul lui-même ? Une multiplication et une addition par poids, sur une carte qui en fait 989 mille milliards par seconde.
#
# > **Prédisez avant d'exécuter.** Quelle part de ces millisecondes la carte passe-t-elle à calculer ? La moitié, un dixième, moins ?

# %%
peak_flops = 989e12                          # H100, FP16, matrices denses
compute_s = 2 * num_parameters / peak_flops
print(f"{1000 * compute_s:.3f} ms de calcul, soit {compute_s / read_s:.1%} du temps de lecture")

# %% [markdown]
# Moins d'un centième. Avec un seul utilisateur, la carte attend sa mémoire plus de 99 % du temps. Mais une fois les poids lus, rien
# n'interdit de s'en servir pour plusieurs : c'est la même lecture. **Un lot de trente-deux séquences coûte une lecture, pas
# trente-deux.**
#
# ### Sur votre machine
#
# Ne nous croyez pas sur parole. Une grande matrice tient lieu de poids ; chaque colonne de `x` est le token d'une séquence.

# %%
import time

import numpy as np

weights = np.random.default_rng(0).standard_normal((4096, 4096), dtype=np.float32)   # 64 Mio

def step_time(batch_size: int) -> float:
    """Durée (secondes) d'un produit pour `batch_size` séquences : le plus court de dix essais."""
    x = np.ones((4096, batch_size), dtype=np.float32)
    durations = []
    for _ in range(10):
        start = time.perf_counter()
        weights @ x
        durations.append(time.perf_counter() - start)
    return min(durations)

# %% [markdown]
# > **Prédisez.** Par combien le temps est-il multiplié quand on passe de 1 à 8 séquences ? Et le débit ?

# %% tags=["mesure"]
batch_sizes = [1, 2, 4, 8, 16, 32, 64]
times = [step_time(size) for size in batch_sizes]
for size, seconds in zip(batch_sizes, times):
    gain = size * times[0] / seconds
    print(f"{size:3d} séquences : {1000 * seconds:6.2f} ms, {size / seconds:7.0f} tokens/s, débit × {gain:.1f}")

# %% tags=["mesure"]
from minibatcher.viz.curves import plot_curves
from minibatcher.viz.show import show

gain = [size * times[0] / seconds for size, seconds in zip(batch_sizes, times)]
show(*plot_curves(
    batch_sizes, {"mesuré ici": gain, "idéal : une lecture pour tous": batch_sizes},
    xlabel="séquences dans le lot", ylabel="débit, par rapport à une seule", title="Un lot, une seule lecture des poids",
))

# %% [markdown]
# Le débit monte bien avec le lot, mais s'écarte de l'idéal : le calcul devient à son tour le plus long. Sur un CPU, cela arrive vite ;
# un GPU calcule beaucoup plus qu'il ne lit, et suit l'idéal bien plus longtemps. Jusqu'où, sur le H100 ?

# %%
knee = read_s / compute_s
print(f"Jusqu'à {knee:.0f} séquences, le H100 attend encore sa mémoire")

# %% [markdown]
# Trois cents places gratuites, ou presque (le cache, lui, se paie : c'est l'affaire du [carnet 02](02_memoire_kv.ipynb)). Reste à les
# occuper.

# %% [markdown]
# ## Le lot statique : tout le monde attend le dernier
#
# L'idée la plus simple : prendre les requêtes par paquets de `B`, les servir ensemble, passer au paquet suivant. C'est ce que fait
# `generate` dans transformers. Chaque réponse a sa longueur ; le paquet, lui, dure autant que **la plus longue**.
#
# Quatre requêtes, quatre places, que le métier appelle des *slots* :

# %%
first_batch = {"A": 3, "B": 10, "C": 5, "D": 2}        # tokens à produire

# %% [markdown]
# > **Prédisez.** Ce lot dure combien de pas ? Sur toutes les cases (places × pas), combien servent ?

# %%
num_steps = max(first_batch.values())
num_cells = num_steps * len(first_batch)
useful = sum(first_batch.values())
print(f"{num_steps} pas, {useful} cases utiles sur {num_cells} : {useful / num_cells:.0%}")

# %%
from minibatcher.simulation.slots import static_timeline
from minibatcher.viz.slots import plot_slots

run = static_timeline(list(first_batch.values()), num_slots=4)
show(*plot_slots(run, title="Un lot statique de quatre requêtes", labels=list(first_batch)))

# %% [markdown]
# La moitié du lot ne sert à rien, et pendant ce temps la file attend. D a fini au deuxième pas ; sa place reste vide huit pas de plus.
#
# ### La même chose à 64 requêtes
#
# Tirons 64 longueurs entre 20 et 400 tokens, toujours les mêmes, et servons-les huit par huit. D'abord à la main :

# %%
import random

random.seed(42)
lengths = [random.randint(20, 400) for _ in range(64)]
B = 8

steps = 0
for start in range(0, len(lengths), B):
    steps += max(lengths[start:start + B])             # le paquet dure autant que sa plus longue réponse
print(f"{steps} pas, {sum(lengths) / (B * steps):.2%} des cases utiles")

# %% [markdown]
# Le paquet dit la même chose en quelques lignes. C'est la première fonction du cours : `minibatcher` grandit avec vous.

# %% [markdown] tags=["cite"]
# minibatcher/simulation/slots.py::batching_statique

# %%
from minibatcher.simulation.slots import batching_statique

batching_statique(lengths, B)

# %% [markdown]
# ## Remplacer au vol
#
# En 2022, l'article Orca (Yu et al., OSDI) propose de décider **à chaque pas** et non à chaque lot : une séquence qui finit sort tout
# de suite, la première de la file prend sa place. On l'appelle aujourd'hui *continuous batching*.
#
# Reprenons les quatre requêtes, avec cinq autres derrière elles.

# %%
queue = {**first_batch, "E": 4, "F": 5, "G": 6, "H": 3, "I": 4}

# %% [markdown]
# > **Prédisez.** Qui prend la place de D, et à quel pas ? Combien de pas pour tout servir, contre combien en statique ?

# %%
from minibatcher.simulation.slots import continuous_timeline
from minibatcher.viz.slots import plot_static_vs_continuous

show(*plot_static_vs_continuous(list(queue.values()), num_slots=4, labels=list(queue)))

# %% [markdown]
# E entre derrière D dès le troisième pas, F derrière A, G derrière C : plus une case perdue tant qu'il reste quelqu'un à servir.
# Avancez pas à pas pour voir chaque départ et chaque arrivée.

# %%
from minibatcher.viz.players import slot_player

slot_player(list(queue.values()), num_slots=4, labels=list(queue))

# %% [markdown]
# ### Le compter, pas à pas
#
# Un simulateur tient en une boucle : avancer d'un pas, sortir ceux qui ont fini, remplir les places.

# %%
def continuous_steps(lengths: list[int], num_slots: int) -> int:
    """Nombre de pas pour tout servir en remplaçant au vol."""
    waiting, running, steps = list(lengths), [], 0     # running : tokens qui restent à chacun
    while waiting or running:
        while waiting and len(running) < num_slots:    # les places libres se remplissent
            running.append(waiting.pop(0))
        running = [left - 1 for left in running]       # un token pour chacun
        running = [left for left in running if left]   # ceux qui ont fini sortent
        steps += 1
    return steps

# %% [markdown]
# > **Prédisez.** Le lot statique demandait 2 837 pas pour les 64 requêtes. Et maintenant ?

# %%
steps = continuous_steps(lengths, B)
print(f"{steps} pas, {sum(lengths) / (B * steps):.2%} des cases utiles")

# %% [markdown]
# Mille pas de moins, sans toucher ni au modèle ni à la carte. Le paquet arrive au même résultat sans compter les pas un à un : il ne
# regarde que **le moment où chaque place se libère**.

# %% [markdown] tags=["cite"]
# minibatcher/simulation/slots.py::batching_continu

# %%
from minibatcher.simulation.slots import batching_continu

batching_continu(lengths, B)

# %%
show(*plot_static_vs_continuous(lengths, num_slots=B))

# %% [markdown]
# ### Pourquoi pas 100 % ?
#
# Regardez le bord droit du chronogramme continu : la file est vide, les dernières réponses finissent seules. Une longue réponse entrée
# tard coûte cher.
#
# > **Prédisez.** Et si l'on servait les plus longues d'abord ? Le nombre de pas : monte, baisse, ne bouge pas ?

# %%
longest_first = sorted(lengths, reverse=True)
for name, order in {"ordre d'arrivée": lengths, "longues d'abord": longest_first}.items():
    steps, utilization = batching_continu(order, B)
    print(f"{name:>16} : {steps} pas, {utilization:.1%}")

# %% [markdown]
# Presque plus rien de perdu : le plus petit nombre de pas possible est la somme des longueurs divisée par `B`. Mais un serveur ne
# connaît pas les longueurs d'avance, et les requêtes courtes attendraient la fin de la journée. On s'en tient à l'ordre d'arrivée.
#
# ## Ce qui fait le gain : la dispersion
#
# Le gain dépend-il du nombre de places, ou de la charge ? Essayons trois charges de même moyenne, assez longues pour que la fin de la
# file n'y compte plus : 20 000 requêtes.

# %%
rng = np.random.default_rng(0)
loads = {
    "toutes égales": np.full(20_000, 200),
    "de 20 à 380": rng.integers(20, 381, 20_000),
    "beaucoup de courtes, quelques longues": np.clip(rng.exponential(200, 20_000), 1, 2000).astype(int),
}
for name, load in loads.items():
    static, continuous = batching_statique(load, 32), batching_continu(load, 32)
    print(f"{name:<40} statique {static[1]:4.0%}   continu {continuous[1]:4.0%}   gain × {static[0] / continuous[0]:.2f}")

# %% [markdown]
# Des réponses toutes pareilles ne laissent rien à gagner. Or celles d'un LLM vont d'un « Oui. » à trois pages : plus elles sont
# dispersées, plus le lot statique se vide. Faites varier vous-même.

# %%
from minibatcher.viz.widgets import batch_explorer

batch_explorer()

# %%
sizes = [1, 2, 4, 8, 16, 32, 64, 128]
curves = {
    name: [batching_statique(load, size)[0] / batching_continu(load, size)[0] for size in sizes] for name, load in loads.items()
}
show(*plot_curves(
    sizes, curves, xlabel="places B", ylabel="pas statiques / pas continus",
    title="Le gain grandit avec la dispersion, et avec B", logx=True,
))

# %% [markdown]
# Plus le lot est grand, plus il a de chances de contenir une très longue réponse, et plus les autres l'attendent.
#
# ## Ce que l'on ressent devant l'écran
#
# Le débit n'est pas tout. Mesurons l'attente de chaque requête avant d'**entrer** dans le lot, et le moment où elle **finit**.

# %%
def entry_and_end(run) -> tuple[np.ndarray, np.ndarray]:
    """Premier et dernier pas de chaque requête dans le chronogramme."""
    requests = np.arange(run.occupancy.max() + 1)
    present = [np.flatnonzero((run.occupancy == request).any(axis=1)) for request in requests]
    return np.array([p[0] for p in present]), np.array([p[-1] + 1 for p in present])

timelines = {"statique": static_timeline(lengths, B), "continu": continuous_timeline(lengths, B)}
print(f"{'':<10}{'attente moyenne':>18}{'pire attente':>15}{'fin moyenne':>14}{'débit':>16}")
for name, run in timelines.items():
    entry, end = entry_and_end(run)
    throughput = sum(lengths) / run.num_steps
    print(f"{name:<10}{entry.mean():>14.0f} pas{entry.max():>11} pas{end.mean():>10.0f} pas{throughput:>9.2f} tok/pas")

# %% [markdown]
# | | lot statique | batching continu |
# |---|---|---|
# | attente avant d'entrer | la fin du lot en cours, tout entier | la première place libre |
# | TTFT (temps jusqu'au premier token) | dominé par cette attente | court tant qu'une place se libère souvent |
# | TPOT (temps entre deux tokens) | un pas | un pas, un peu plus chargé |
# | débit | les places vides le plombent | proche du maximum |
# | équité | le hasard du paquet décide | l'ordre d'arrivée décide |
#
# ## À vous
#
# Écrivez les deux fonctions du carnet. Une boucle claire vaut mieux qu'une astuce ; vérifiez la fin d'un paquet et le pas où une place
# se libère : c'est là que tout le monde se trompe.

# %% tags=["exercice"]
# ex01

# %% [markdown]
# La solution se trouve dans [`solutions/ex01_batching.py`](../solutions/ex01_batching.py) ; regardez-la après avoir essayé.
#
# ## Ce que ce modèle ne dit pas
#
# Deux mensonges commodes. Un prompt y entre **gratuitement**, alors que le lire est un gros calcul : les carnets 04 et 05 le comptent.
# Et chaque séquence y occupe **la même mémoire**, alors que son cache grandit à chaque token : c'est le sujet du carnet suivant.
#
# ## Ce que nous avons construit
#
# Dans `minibatcher/simulation/slots.py` : `batching_statique`, `batching_continu` et leurs chronogrammes ; dans `minibatcher/viz`, de
# quoi les dessiner.

# %% [markdown] tags=["cite"]
# minibatcher/simulation/slots.py::SlotRun
# minibatcher/simulation/slots.py::continuous_timeline

# %% [markdown]
# ## À retenir
#
# 1. Un pas de decode relit tous les poids : le calcul en prend moins d'un centième sur H100, et une lecture sert pour tout le lot.
# 2. Un lot statique dure autant que sa plus longue réponse : 57 % de cases utiles sur nos 64 requêtes, en 2 837 pas.
# 3. Remplacer à chaque pas en demande 1 804, à 90 %. La fin de la file explique le reste.
# 4. Le gain vient de la dispersion des longueurs. Des réponses toutes égales n'en laissent aucun.
