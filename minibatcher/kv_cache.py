"""La mémoire du cache KV, en blocs, comme un système d'exploitation découpe la sienne en pages.

Deux étages, nommés comme dans vLLM V1 (`vllm/v1/core/block_pool.py`, `kv_cache_manager.py`) :

- `BlockPool` possède les blocs physiques : compteurs de références, file des blocs libres, empreintes du cache de préfixe ;
- `KVCacheManager` tient la table de blocs de chaque requête : position logique → bloc physique.

Aucune clé ni valeur n'est stockée ici : on ne manipule que des numéros de blocs. C'est l'exécuteur qui y range les tenseurs.
"""

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from minibatcher.errors import MinibatcherError, require_int
from minibatcher.request import Request


class CacheIntegrityError(MinibatcherError):
    """Le tas de blocs se contredit : c'est une erreur du programme, jamais de la requête."""


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Empreinte d'un bloc plein, chaînée à celle du bloc précédent (`b""` pour le premier).

    Deux blocs n'ont la même empreinte que si tous les tokens depuis le début sont les mêmes : K et V d'un token dépendent
    de tout ce qui le précède. SHA-256 : une collision servirait à une requête le contexte d'une autre.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


class BlockPool:
    """Les blocs physiques, numérotés de 0 à `num_blocks - 1`.

    Un bloc est **utilisé** (compteur de références > 0), **en cache** (libre, mais son contenu a une empreinte et peut
    resservir) ou **libre** (sans contenu utile). Les deux derniers attendent dans `free_queue`, tête d'abord : les blocs sans
    empreinte y reviennent en tête, ceux qui en ont une en queue. Prendre en tête évince donc le moins récemment utilisé (LRU).
    """

    def __init__(self, num_blocks: int) -> None:
        require_int("num_blocks", num_blocks, 1)
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.block_hashes: list[bytes | None] = [None] * num_blocks
        # OrderedDict : une file dont on retire le milieu en O(1), quand un bloc en cache resert.
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        # Plusieurs blocs peuvent avoir le même contenu (calculé deux fois en même temps) : le plus ancien sert.
        self.cached: dict[bytes, dict[int, None]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocs que l'on peut prendre : libres ou en cache."""
        return len(self.free_queue)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - len(self.free_queue)

    @property
    def num_cached_blocks(self) -> int:
        """Blocs non utilisés dont le contenu peut resservir."""
        return sum(self.block_hashes[block] is not None for block in self.free_queue)

    def take(self, count: int) -> list[int]:
        """Prend `count` blocs (compteur à 1), en évinçant au besoin les moins récemment utilisés."""
        blocks = []
        for _ in range(count):
            block, _ = self.free_queue.popitem(last=False)
            self.forget(block)
            self.ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Une table de plus tient ces blocs ; ceux qui attendaient sortent de la file."""
        for block in blocks:
            if self.ref_counts[block] == 0:
                del self.free_queue[block]
            self.ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Une table de moins tient ces blocs. Le premier de la liste sera évincé le premier."""
        without_hash = []
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                if self.block_hashes[block] is None:
                    without_hash.append(block)
                else:
                    self.free_queue[block] = None
        for block in reversed(without_hash):
            self.free_queue[block] = None
            self.free_queue.move_to_end(block, last=False)

    def remember(self, block: int, block_hash: bytes) -> None:
        """Le bloc est plein : son contenu pourra resservir sous cette empreinte."""
        self.block_hashes[block] = block_hash
        self.cached.setdefault(block_hash, {})[block] = None

    def forget(self, block: int) -> None:
        """Le contenu du bloc ne peut plus resservir."""
        block_hash = self.block_hashes[block]
        if block_hash is not None:
            self.block_hashes[block] = None
            same = self.cached[block_hash]
            del same[block]
            if not same:
                del self.cached[block_hash]

    def find(self, block_hash: bytes) -> int | None:
        """Le plus ancien bloc de ce contenu, ou `None`."""
        same = self.cached.get(block_hash)
        return next(iter(same)) if same else None


class KVCacheManager:
    """Donne et reprend les blocs des requêtes.

    - `num_blocks` : blocs du cache ; `block_size` : tokens par bloc ;
    - `enable_prefix_caching` : garder le contenu des blocs pleins pour les requêtes de même préfixe.

    `block_tables[request_id]` est la liste des blocs de la requête, dans l'ordre des positions : le token `p` est dans le
    bloc `block_tables[request_id][p // block_size]`, à l'emplacement `p % block_size`.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        require_int("block_size", block_size, 1)
        self.block_pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.block_tables: dict[str, list[int]] = {}
        self._num_hashed: dict[str, int] = {}  # blocs de la table déjà munis d'une empreinte

    @property
    def num_blocks(self) -> int:
        return self.block_pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self.block_pool.num_free_blocks

    @property
    def usage(self) -> float:
        """Part du cache utilisée, entre 0 et 1."""
        return self.block_pool.num_used_blocks / self.num_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocs nécessaires pour `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def get_computed_blocks(self, request: Request) -> list[int]:
        """Les blocs en cache qui contiennent déjà le début de la requête, du premier au dernier.

        Le dernier token n'est jamais servi par le cache, même si son bloc y est : il faut bien calculer ses logits.
        """
        if not self.enable_prefix_caching:
            return []
        blocks = []
        for index in range((request.num_tokens - 1) // self.block_size):
            block = self.block_pool.find(self._block_hash(request, index))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def admit(self, request: Request, num_new_tokens: int, computed_blocks: list[int]) -> bool:
        """Installe une requête qui entre : blocs partagés `computed_blocks`, puis blocs neufs pour `num_new_tokens` tokens.

        Rend `False`, sans rien changer, si toute la séquence connue ne tiendrait pas dans les blocs libres : admettre sur
        son seul premier morceau de prompt mènerait tout droit à la préemption.
        """
        pool = self.block_pool
        reclaimed = sum(pool.ref_counts[block] == 0 for block in computed_blocks)
        missing = self.num_blocks_for(request.num_tokens) - len(computed_blocks)
        if missing + reclaimed > pool.num_free_blocks:
            return False
        pool.touch(computed_blocks)
        self.block_tables[request.request_id] = list(computed_blocks)
        self._num_hashed[request.request_id] = len(computed_blocks)
        request.num_computed_tokens = len(computed_blocks) * self.block_size
        return self.allocate(request, num_new_tokens)

    def allocate(self, request: Request, num_new_tokens: int) -> bool:
        """Garantit un emplacement aux `num_new_tokens` tokens suivants ; `False`, sans rien changer, s'il manque des blocs."""
        block_size = self.block_size
        num_tokens = request.num_computed_tokens + num_new_tokens
        # Le cas de presque tous les decodes : le token suit le précédent dans le même bloc, sans le remplir.
        if num_new_tokens == 1 and num_tokens % block_size > 1:
            return True
        table = self.block_tables[request.request_id]
        missing = -(-num_tokens // block_size) - len(table)
        if missing > 0:
            if missing > len(self.block_pool.free_queue):
                return False
            table.extend(self.block_pool.take(missing))
        # Les blocs que ce pas remplit sont proposés tout de suite : une requête admise dans le même pas peut déjà les
        # partager, car l'exécuteur écrit K et V de tout le lot avant que quiconque ne lise.
        if self.enable_prefix_caching:
            num_hashed = self._num_hashed[request.request_id]
            num_full = num_tokens // block_size
            if num_full > num_hashed:
                for index in range(num_hashed, num_full):
                    self.block_pool.remember(table[index], self._block_hash(request, index))
                self._num_hashed[request.request_id] = num_full
        return True

    def free(self, request: Request, keep_cached: bool = True) -> None:
        """Rend les blocs de la requête, les derniers d'abord : la fin d'une séquence resservira moins que son début.

        `keep_cached=False` oublie aussi leur contenu, si un calcul interrompu a pu le laisser faux.
        """
        table = self.block_tables.pop(request.request_id)
        num_hashed = self._num_hashed.pop(request.request_id)
        if not keep_cached:
            for block in table[:num_hashed]:
                self.block_pool.forget(block)
        self.block_pool.release(reversed(table))

    def reset_prefix_cache(self) -> None:
        """Oublie tout ce qui est en cache ; les blocs utilisés restent à leurs requêtes."""
        for block in range(self.num_blocks):
            self.block_pool.forget(block)

    def _block_hash(self, request: Request, index: int) -> bytes:
        hashes = request.block_hashes
        while len(hashes) <= index:
            start = len(hashes) * self.block_size
            hashes.append(hash_block(hashes[-1] if hashes else b"", request.token_ids[start : start + self.block_size]))
        return hashes[index]

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Vérifie les invariants du tas ; `requests` : celles qui tiennent une table. Lève `CacheIntegrityError`.

        1. libres + utilisés + en cache = total ; 2. le compteur d'un bloc est le nombre de tables qui le tiennent ;
        3. une empreinte ne désigne que son contenu ; 4. chaque token calculé a un emplacement.
        """
        pool = self.block_pool
        held = Counter(block for table in self.block_tables.values() for block in table)
        problems = [
            f"bloc {block} : compteur {count}, mais {held[block]} table(s) le tiennent"
            for block, count in enumerate(pool.ref_counts)
            if count != held[block]
        ]
        problems += [f"bloc {b} : utilisé et libre à la fois" for b in pool.free_queue if pool.ref_counts[b]]
        if len(pool.free_queue) + len(held) != pool.num_blocks:
            problems.append(f"{len(pool.free_queue)} blocs à prendre + {len(held)} utilisés ≠ {pool.num_blocks}")
        in_map = {(block, key) for key, blocks in pool.cached.items() for block in blocks}
        if in_map != {(block, key) for block, key in enumerate(pool.block_hashes) if key is not None}:
            problems.append("les empreintes des blocs et la table de recherche ne disent pas la même chose")
        by_id = {request.request_id: request for request in requests}
        if set(by_id) != set(self.block_tables):
            problems.append(f"tables sans requête ou requêtes sans table : {sorted(set(by_id) ^ set(self.block_tables))}")
        for request_id in set(by_id) & set(self.block_tables):
            request, table = by_id[request_id], self.block_tables[request_id]
            if request.num_computed_tokens > len(table) * self.block_size:
                problems.append(f"{request_id} : {request.num_computed_tokens} tokens calculés pour {len(table)} blocs")
            parent = b""
            for index, block in enumerate(table):
                tokens = request.token_ids[index * self.block_size : (index + 1) * self.block_size]
                parent = hash_block(parent, tokens) if len(tokens) == self.block_size else None  # un bloc à remplir n'en a pas
                if pool.block_hashes[block] not in (None, parent):
                    problems.append(f"{request_id} : le bloc {block} porte l'empreinte d'un autre contenu")
        if problems:
            raise CacheIntegrityError("Cache KV incohérent : " + " ; ".join(problems))
