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
# # Servir un LLM, pièce par pièce
#
# **Dans ce carnet**, vous allez :
#
# 1. voir où mène le cours, et ce que votre machine sait en faire tourner ;
# 2. retrouver en une page le KV cache, et mesurer ce qu'il épargne ;
# 3. constater que produire un token, c'est surtout attendre la mémoire ;
# 4. apprendre comment marchent les exercices.
#
# Durée : 25 minutes. Aucun GPU.

# %% tags=["mise-en-place"]

# %% [markdown]
# ## Pour qui, pour quoi
#
# Vous savez Python, et ce qu'est un transformer. Vous vous demandez comment **un seul GPU** répond à cent personnes à la fois, pourquoi le
# premier mot tarde parfois, ce que règlent vraiment les options de vLLM.
#
# La réponse du cours : construisons-le. Chaque carnet ajoute une pièce à un petit paquet Python, `minibatcher`. À la fin, ses pièces
# assemblées servent un vrai modèle, prennent les mêmes décisions que vLLM, et vous les avez toutes écrites ou lues.
#
# Le fil rouge tient en une phrase : **le scheduler décide, un exécuteur exécute**. Tantôt l'exécuteur est un vrai modèle, tantôt une
# horloge qui fait semblant. Le scheduler, lui, ne change pas : ce que vous découvrirez au simulateur sera vrai sur le GPU.

# %%
from minibatcher.course.lessons import course_map

course_map()

# %% [markdown]
# ## Votre machine
#
# Rien n'est obligatoire au-delà de Python : sans GPU, les carnets qui en voudraient un font tourner les mêmes pièces sur un petit modèle,
# et le disent.

# %% tags=["mesure"]
from minibatcher.course.doctor import diagnose

diagnose()

# %% [markdown]
# La même chose dans un terminal : `minibatcher doctor`.
#
# ## Une page de rappel : le KV cache
#
# Un transformer produit ses tokens un par un. Chaque nouveau token regarde tous les précédents, à travers leurs **clés** (K) et leurs
# **valeurs** (V). Voici une couche d'attention minuscule : une tête, 64 nombres par token.

# %%
import numpy as np

rng = np.random.default_rng(0)
size = 64
w_q, w_k, w_v = (rng.standard_normal((size, size)) / size**0.5 for _ in range(3))
tokens = rng.standard_normal((400, size))          # les tokens d'une réponse, déjà en vecteurs

# %%
def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Ce que `query` retient de ceux qu'il regarde : leurs valeurs, pondérées par la ressemblance des clés."""
    scores = keys @ query / len(query) ** 0.5
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values

# %% [markdown]
# La version naïve recalcule, à chaque token, les clés et les valeurs de **tous** les précédents.

# %%
def answer_without_cache(num_tokens: int) -> np.ndarray:
    outputs = []
    for t in range(num_tokens):
        seen = tokens[: t + 1]
        outputs.append(attend(tokens[t] @ w_q, seen @ w_k, seen @ w_v))
    return np.array(outputs)

# %% [markdown]
# Or la clé d'un token passé ne change jamais : elle ne dépend que de lui et de ce qui le précède. Gardons-la.

# %%
def answer_with_cache(num_tokens: int) -> np.ndarray:
    keys, values = np.empty((num_tokens, size)), np.empty((num_tokens, size))     # le KV cache
    outputs = []
    for t in range(num_tokens):
        keys[t], values[t] = tokens[t] @ w_k, tokens[t] @ w_v                     # un seul token à calculer
        outputs.append(attend(tokens[t] @ w_q, keys[: t + 1], values[: t + 1]))
    return np.array(outputs)

# %% [markdown]
# > **Prédisez avant d'exécuter.** Les deux donnent-elles exactement la même réponse ? Pour 400 tokens, combien de fois moins de clés
# > calculées avec le cache : 2 fois, 20 fois, 200 fois ?

# %%
same = np.allclose(answer_without_cache(400), answer_with_cache(400))
without, with_cache = sum(t + 1 for t in range(400)), 400
print(f"même réponse : {same} ; {without} clés calculées contre {with_cache}, soit {without / with_cache:.0f} fois moins")

# %% [markdown]
# Deux cents fois moins : le cache change un travail qui croît comme le carré de la longueur en un travail qui croît comme elle. Il a un
# prix, la mémoire, et c'est ce prix qui occupera les carnets 02 à 04.
#
# Chronométrons, sur votre machine.

# %% tags=["mesure"]
import time

def seconds(function, *arguments) -> float:
    """Durée du plus court de trois appels."""
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        function(*arguments)
        durations.append(time.perf_counter() - start)
    return min(durations)

for num_tokens in (50, 100, 200, 400):
    slow, fast = seconds(answer_without_cache, num_tokens), seconds(answer_with_cache, num_tokens)
    print(f"{num_tokens:4d} tokens : {1000 * slow:7.1f} ms sans cache, {1000 * fast:5.1f} ms avec")

# %% [markdown]
# Doubler la longueur fait bien plus que doubler le temps sans cache, et à peine plus avec. Et le prix ?

# %%
cache_bytes = 2 * 400 * size * 8                   # K et V, 400 tokens, 64 nombres de 8 octets
print(f"{cache_bytes / 1024:.0f} Kio pour cette unique tête")

# %% [markdown]
# Peu de chose ici. Mais un vrai modèle a des dizaines de couches, et un serveur des dizaines de conversations.
#
# > **Prédisez.** Trente-deux couches, huit têtes de 128 nombres sur deux octets, 4 000 tokens : combien de mégaoctets par conversation ?

# %%
llama_bytes = 2 * 32 * 8 * 128 * 2 * 4000
print(f"{llama_bytes / 1e6:.0f} Mo par conversation")

# %% [markdown]
# Un demi-gigaoctet : c'est le cache de Llama 3 8B. Voilà pourquoi la mémoire, plus que le calcul, décidera du nombre de personnes servies.
#
# Ce que nous venons de faire a deux temps, et deux noms que vous verrez partout :
#
# - le **prefill** lit le prompt : tous ses tokens d'un coup, beaucoup de calcul ;
# - le **decode** produit la réponse : un token par pas, très peu de calcul.
#
# ## Le decode attend la mémoire
#
# Produire un token, c'est multiplier chaque matrice de poids par **un** vecteur. Lire un prompt de 256 tokens, c'est la multiplier par 256.
#
# > **Prédisez.** Par combien le temps est-il multiplié quand on passe d'un vecteur à 256 ?

# %% tags=["mesure"]
weights = rng.standard_normal((4096, 4096)).astype(np.float32)                    # 64 Mio de poids

def product_ms(num_columns: int) -> float:
    x = np.ones((4096, num_columns), dtype=np.float32)
    return 1000 * seconds(np.matmul, weights, x)

decode_ms, prefill_ms = product_ms(1), product_ms(256)
print(f"1 vecteur : {decode_ms:.1f} ms ; 256 vecteurs : {prefill_ms:.1f} ms")
print(f"soit {prefill_ms / decode_ms:.0f} fois plus, et non 256")

# %% [markdown]
# Un vecteur seul coûte donc, au prorata, bien plus cher. Que fait le processeur pendant ce temps ? Comparons à une simple copie des poids,
# où il n'y a **rien** à calculer.
#
# > **Prédisez.** En gigaoctets par seconde, le produit par un vecteur va-t-il dix fois moins vite que la copie, deux fois moins, aussi vite ?

# %% tags=["mesure"]
target = np.empty_like(weights)
copy_ms = 1000 * seconds(np.copyto, target, weights)
read_rate, copy_rate = weights.nbytes / decode_ms / 1e6, 2 * weights.nbytes / copy_ms / 1e6
print(f"produit par un vecteur : {decode_ms:.1f} ms, {read_rate:.0f} Go/s lus")
print(f"copie                  : {copy_ms:.1f} ms, {copy_rate:.0f} Go/s lus et écrits")

# %% [markdown]
# Les deux débits sont du même ordre : le produit va à la vitesse de la mémoire, le calcul se cache derrière. On dit que le decode est **borné par
# la mémoire** (*memory-bound*).
#
# > **Prédisez.** Et avec 256 vecteurs, combien d'opérations par seconde de plus : autant, deux fois, dix fois ?

# %% tags=["mesure"]
for name, columns, milliseconds in (("1 vecteur", 1, decode_ms), ("256 vecteurs", 256, prefill_ms)):
    flops = 2 * weights.size * columns / (milliseconds / 1000)
    print(f"{name:>12} : {flops / 1e9:6.1f} milliards d'opérations par seconde")

# %% tags=["mesure"]
from minibatcher.viz.curves import plot_curves
from minibatcher.viz.show import show

columns = [1, 2, 4, 8, 16, 32, 64, 128, 256]
rates = [2 * weights.size * count / product_ms(count) / 1e6 for count in columns]
show(*plot_curves(
    columns, {"mesuré ici": rates}, xlabel="vecteurs multipliés ensemble", ylabel="milliards d'opérations par seconde",
    title="Plus on sert de vecteurs par lecture, mieux on calcule", logx=True,
))

# %% [markdown]
# Tout le cours est dans cette courbe : à gauche, un utilisateur seul gâche la machine ; à droite, plusieurs ensemble l'occupent. **Servir,
# c'est trouver chaque milliseconde de quoi remplir le lot.**
#
# ## Comment se passent les exercices
#
# - **Prédisez** : avant certaines cellules, une question. Répondez-y pour de bon, même mal : on retient ce que l'on a parié.
# - **À vous** : une cellule qui commence par `%%exercice`. Vous complétez, vous exécutez, et le retour est immédiat : ce qui a été appelé, ce
#   que l'on attendait, ce que vous avez rendu. Des indices se déplient, la solution jamais.
# - Ce que vous écrivez est enregistré dans `mes_exercices/`. À partir du carnet 03, **votre pièce prend la place de celle du paquet**
#   dans le moteur.
# - Une cellule laissée telle quelle dit « à faire » ; le reste du carnet tourne quand même.
#
# Dans un terminal, `minibatcher check ex01` passe les mêmes vérifications. Voici ce que dirait le retour à quelqu'un qui aurait répondu un
# peu vite au premier exercice :

# %%
from minibatcher.course.check import run_checks

hasty = """
def batching_statique(longueurs, B):
    return sum(longueurs) // B, 1.0
"""
run_checks("ex01", hasty)

# %% [markdown]
# La valeur attendue est donnée, l'appel aussi : vous pouvez le rejouer. Les exercices du cours, dans l'ordre :

# %%
from minibatcher.course.lessons import exercise_table

exercise_table()

# %% [markdown]
# ## Les mots
#
# Le métier parle anglais. Le cours garde les mots que vous lirez partout (scheduler, prefill, decode, batch, token, cache) et traduit les
# autres. En voici la liste, avec le carnet où chacun sert d'abord.

# %%
from minibatcher.course.glossary import glossary_table

glossary_table()

# %% [markdown]
# ## Ce que nous avons construit
#
# Rien encore : le paquet commence au carnet suivant. Mais vous avez retrouvé le KV cache, et mesuré la limite que tout le reste contourne.
#
# ## À retenir
#
# 1. Le KV cache garde les clés et les valeurs : deux cents fois moins de travail pour 400 tokens, au prix de la mémoire.
# 2. Le decode relit tous les poids pour un seul vecteur : il va à la vitesse de la mémoire, pas à celle du calcul.
# 3. Multiplier plusieurs vecteurs par lecture occupe enfin la machine. C'est le lot, et le sujet du cours.
