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
# # La mémoire, vrai plafond
#
# **Dans ce carnet**, vous allez :
#
# 1. calculer ce que pèse le cache d'un token, et voir que la taille du modèle n'y est presque pour rien ;
# 2. en déduire combien de personnes une carte peut servir à la fois ;
# 3. mesurer ce que gâche une réservation d'un seul tenant ;
# 4. écrire votre calculateur de mémoire.
#
# Durée : 40 minutes. Aucun GPU. À lire après [le carnet 01](01_statique_vs_continu.ipynb).

# %% tags=["mise-en-place"]

# %% [markdown]
# ## Le carnet 01 promettait trois cents places
#
# Lire les poids une fois pour trois cents séquences : le calcul le permet. Mais chaque séquence garde en mémoire les clés et les valeurs
# (K et V) de tous ses tokens, pour ne pas les recalculer. C'est le **KV cache**, et il grandit à chaque token.
#
# Combien pèse un token ? Une clé et une valeur, par couche et par tête KV ; chacune est un vecteur.

# %%
layers, kv_heads, head_dim, bytes_per_element = 32, 8, 128, 2     # Llama 3 8B, en FP16
token_bytes = 2 * layers * kv_heads * head_dim * bytes_per_element
print(f"{token_bytes} octets, soit {token_bytes / 1024:.0f} Kio par token")

# %% [markdown]
# Le 2 du début compte K **et** V. C'est lui qu'on oublie.
#
# > **Prédisez avant d'exécuter.** Llama 2 7B a autant de couches, des têtes de même taille et un milliard de poids en moins. Son cache par
# > token est-il plus léger ou plus lourd ? De combien ?

# %%
from minibatcher.simulation.sheets import get_model, kv_bytes_per_token

for name in ("Llama 3 8B", "Llama 2 7B"):
    model = get_model(name)
    print(f"{name} : {model.num_kv_heads:2d} têtes KV, {kv_bytes_per_token(model) / 1024:.0f} Kio par token")

# %% [markdown]
# Quatre fois plus lourd. Llama 2 7B a une tête KV par tête de requête, soit trente-deux ; Llama 3 8B partage huit têtes KV entre
# trente-deux têtes de requête : c'est la *grouped-query attention* (GQA). **Le nombre de têtes KV décide, pas la taille du modèle.**
#
# La formule du paquet est la vôtre, à un détail près : le cache en `int8` garde aussi des échelles.

# %% [markdown] tags=["cite"]
# minibatcher/simulation/sheets.py::kv_bytes_per_token

# %%
from minibatcher.simulation.sheets import MODELS

print(f"{'modèle':<14}{'paramètres':>13}{'couches':>9}{'têtes KV':>10}{'dimension':>11}{'Kio/token':>11}")
for model in sorted(MODELS.values(), key=lambda model: model.num_parameters):
    sizes = f"{model.num_layers:>9}{model.num_kv_heads:>10}{model.head_dim:>11}{kv_bytes_per_token(model) / 1024:>11.0f}"
    print(f"{model.name:<14}{model.num_parameters / 1e9:>10.2f} Md{sizes}")

# %% [markdown]
# Lisez la dernière colonne de haut en bas : elle ne suit pas la deuxième.
#
# Ces dimensions viennent du `config.json` que chaque modèle publie. Le paquet sait lire le vôtre :

# %% [markdown] tags=["cite"]
# minibatcher/simulation/sheets.py::ModelSheet.from_config

# %%
from minibatcher.simulation.sheets import ModelSheet

my_config = {
    "model_type": "llama", "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048, "hidden_act": "silu",
}
tiny = ModelSheet.from_config(my_config)
print(f"{tiny.num_parameters / 1e9:.2f} Md de paramètres, {kv_bytes_per_token(tiny) / 1024:.0f} Kio par token")

# %% [markdown]
# ## Ce qui reste quand le modèle est chargé
#
# La mémoire d'une carte se partage en trois : les poids, les activations du pas en cours, et tout le reste pour le cache.

# %%
from minibatcher.simulation.hardware import get_hardware
from minibatcher.simulation.sheets import kv_cache_bytes, weight_bytes
from minibatcher.viz.bars import plot_memory_bar
from minibatcher.viz.show import show

model, card = get_model("Llama 3 8B"), get_hardware("A100-80")
weights, cache = weight_bytes(model), kv_cache_bytes(model, card)
activations = 1e9                                    # ordre de grandeur ; vLLM le mesure au démarrage
parts = {"poids": weights, "activations": activations, "cache": cache}
show(*plot_memory_bar(parts, total=card.memory_bytes))

# %% [markdown]
# Le calculateur laisse libres 10 % de la carte : c'est le réglage par défaut de vLLM, `gpu_memory_utilization=0.9`, que l'on retrouvera
# au labo de réglage.

# %% [markdown] tags=["cite"]
# minibatcher/simulation/sheets.py::kv_cache_bytes
# minibatcher/simulation/sheets.py::max_num_sequences

# %% [markdown]
# ### Combien de conversations ?
#
# Prenons 60 Go pour le cache et des conversations de 4 000 tokens, prompt et réponse compris.
#
# > **Prédisez.** Combien Llama 3 8B en sert-il à la fois ? Et Llama 2 7B ?

# %%
from minibatcher.simulation.sheets import max_num_sequences

for name in ("Llama 3 8B", "Llama 2 7B"):
    model = get_model(name)
    per_sequence = 4000 * kv_bytes_per_token(model)
    in_go, in_gio = max_num_sequences(model, 60e9, 4000), max_num_sequences(model, 60 * 2**30, 4000)
    print(f"{name} : {per_sequence / 1e6:.0f} Mo par séquence, {in_go} séquences dans 60 Go, {in_gio} dans 60 Gio")

# %% [markdown]
# Une centaine d'un côté. De l'autre, on lit souvent « une vingtaine » : le calcul donne 28, et il est sous vos yeux. Méfiez-vous aussi de
# l'unité : 60 **Gio** n'en contiennent pas autant que 60 Go.
#
# Des trois cents places du carnet 01, la mémoire n'en laisse donc que le tiers, ou le dixième.
#
# ### Et sur un T4 ?
#
# Le T4 gratuit de Colab a 16 Go. Avec Qwen2.5 1.5B, que le cours y servira :

# %%
t4, qwen = get_hardware("T4"), get_model("Qwen2.5 1.5B")
cache = kv_cache_bytes(qwen, t4)
print(f"{weight_bytes(qwen) / 1e9:.1f} Go de poids, {cache / 1e9:.1f} Go de cache")
print(f"{kv_bytes_per_token(qwen) / 1024:.0f} Kio par token : {max_num_sequences(qwen, cache, 1000)} séquences de 1 000 tokens")

# %% [markdown]
# Deux têtes KV seulement : une petite carte sert beaucoup de monde. Essayez l'autre extrême.

# %%
from minibatcher.errors import ConfigError

try:
    kv_cache_bytes(get_model("Llama 3 8B"), t4)
except ConfigError as problem:
    print(problem)

# %%
from minibatcher.viz.widgets import memory_explorer

memory_explorer()

# %% [markdown]
# ### Huit bits par nombre
#
# > **Prédisez.** On range K et V sur un octet au lieu de deux. Combien de séquences en plus, exactement ?

# %%
for dtype in ("float16", "fp8", "int8"):
    count = max_num_sequences(get_model("Llama 3 8B"), 60e9, 4000, dtype)
    print(f"{dtype:<8} {kv_bytes_per_token(get_model('Llama 3 8B'), dtype) / 1024:6.1f} Kio par token, {count} séquences")

# %% [markdown]
# Le double en `fp8`, un peu moins en `int8`, dont chaque vecteur garde une échelle. La qualité tient-elle ? Cela se mesure, au carnet 11.
#
# ## Réserver d'un seul tenant
#
# Nous avons compté comme si chaque séquence ne prenait que sa place. Les premiers serveurs faisaient autrement : ne sachant pas combien
# de tokens viendraient, ils réservaient à l'arrivée la longueur **maximale**, d'un seul tenant.
#
# > **Prédisez.** Une réponse « Oui. » avec une longueur maximale de 8 000 tokens : quelle part de sa réservation sert ?

# %%
prompt, answer, reserved = 60, 3, 8000
print(f"{(prompt + answer) / reserved:.1%}")

# %% [markdown]
# Un cas extrême ? Prenons des conversations ordinaires : 161 tokens de prompt et 338 de réponse en moyenne, celles du jeu ShareGPT que
# cite l'article de vLLM (Kwon et al., SOSP 2023), tirées au hasard, et le cache de leur expérience (15 700 tokens).

# %%
import numpy as np

rng = np.random.default_rng(0)
prompts, answers = (1 + rng.exponential(mean, 3000).astype(int) for mean in (161, 338))
fits = np.flatnonzero(prompts + answers <= 2048)[:1000]
prompts, answers = prompts[fits], answers[fits]
print(f"{len(fits)} conversations, {prompts.mean():.0f} tokens de prompt et {answers.mean():.0f} de réponse en moyenne")

# %%
from minibatcher.viz.bars import plot_reservation

show(*plot_reservation((prompts + answers)[:40], reservation=2048))

# %% [markdown]
# Le simulateur de mémoire les sert dans l'ordre, avec trois façons de réserver d'un seul tenant, et une quatrième par blocs de seize
# tokens, à mesure des besoins.

# %% [markdown] tags=["cite"]
# minibatcher/simulation/memory.py::Contiguous
# minibatcher/simulation/memory.py::Paged

# %% [markdown]
# > **Prédisez.** Quelle part du cache contient vraiment des K et des V quand on réserve le maximum ? Et par blocs ?

# %%
from minibatcher.simulation.memory import Contiguous, Paged, memory_limited

kinds = {
    "le maximum": Contiguous("max", 2048),
    "la puissance de deux": Contiguous("pow2"),
    "la longueur exacte, devinée": Contiguous("oracle"),
    "par blocs de 16": Paged(16),
}
runs = {name: memory_limited(answers, 256, 15_700, prompt_lengths=prompts, allocation=kind) for name, kind in kinds.items()}
for name, run in runs.items():
    print(f"{name:<28} {run.memory_shares()['useful']:4.0%} utile, {run.num_running[run.blocked].mean():4.1f} séquences à la fois")

# %% [markdown]
# L'article mesure 20 %, 27 %, 38 % et 96 % (figure 2). Notre simulation retrouve ces ordres de grandeur sans GPU ; seule la puissance de
# deux est un peu plus basse. Et voici ce qui compte : **la même mémoire sert deux à cinq fois plus de monde** quand on la donne par petits blocs.
#
# Où part le reste ? Trois fuites différentes.

# %%
print(f"{'':<28}{'utile':>8}{'futur':>8}{'interne':>9}{'libre':>8}")
for name, run in runs.items():
    shares = run.memory_shares()
    print(f"{name:<28}{shares['useful']:>8.0%}{shares['future']:>8.0%}{shares['internal']:>9.0%}{shares['free']:>8.0%}")

# %% [markdown]
# - **futur** : réservé pour des tokens qui viendront, mais plus tard ;
# - **interne** : réservé pour des tokens qui ne viendront jamais ;
# - **libre** : trop morcelé pour qu'une requête de plus y tienne d'un seul tenant.
#
# Deviner la longueur exacte supprime la deuxième, pas les deux autres. Seuls de petits blocs, pris au fur et à mesure et n'importe où,
# les suppriment presque toutes. C'est le carnet 03.
#
# ## La place que prend la longueur
#
# Un dernier piège : on dimensionne souvent sur la longueur **moyenne à l'arrivée**. Or une séquence grandit.

# %%
from minibatcher.viz.curves import plot_curves

mean_lengths = [250, 500, 1000, 2000, 4000, 8000]
counts = {
    name: [max_num_sequences(get_model(name), 60e9, length) for length in mean_lengths]
    for name in ("Llama 3 8B", "Llama 2 7B", "Qwen2.5 7B")
}
show(*plot_curves(
    mean_lengths, counts, xlabel="tokens par séquence", ylabel="séquences à la fois",
    title="60 Go de cache : qui tient dedans ?", logx=True, logy=True,
))

# %% [markdown]
# ## À vous
#
# Quatre fonctions, et des unités à ne pas mélanger : octets, Go (10⁹) et Gio (2³⁰).

# %% tags=["exercice"]
# ex02

# %% [markdown]
# La solution se trouve dans [`solutions/ex02_memoire_kv.py`](../solutions/ex02_memoire_kv.py) ; regardez-la après avoir essayé.
#
# ## Ce que nous avons construit
#
# Dans `minibatcher/simulation` : les fiches des machines (`hardware.py`) et des modèles (`sheets.py`, que `hub_config.py` remplit depuis
# un `config.json`), et le simulateur à mémoire limitée (`memory.py`), dont le carnet 04 reprendra la préemption.

# %% [markdown] tags=["cite"]
# minibatcher/simulation/hardware.py::Hardware
# minibatcher/simulation/hub_config.py::read_fields

# %% [markdown]
# ## À retenir
#
# 1. Octets par token = 2 × couches × têtes KV × dimension de tête × octets du type. Llama 3 8B : 128 Kio ; Llama 2 7B : 512 Kio.
# 2. Séquences à la fois ≈ mémoire du cache / (octets par token × longueur). La mémoire, et non le calcul, fixe le plafond.
# 3. Réserver le maximum d'un seul tenant laisse environ un cinquième du cache utile ; par blocs, plus de neuf dixièmes.
