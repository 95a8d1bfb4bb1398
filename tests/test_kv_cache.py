"""Le tas de blocs, exemple par exemple : empreintes, partage, éviction, et un contrôle d'intégrité qui sait échouer."""

import copy

import pytest
from helpers import make_request

from minibatcher.errors import ConfigError
from minibatcher.kv_cache import CacheIntegrityError, KVCacheManager, hash_block
from minibatcher.request import Request

BLOCK = 4
A, B, C, D = ([10 * k + i for i in range(BLOCK)] for k in range(1, 5))  # quatre blocs de tokens différents


def enter(manager: KVCacheManager, request: Request, num_tokens: int | None = None) -> int:
    """Fait entrer une requête et calcule son prompt (ou ses `num_tokens` premiers tokens) ; rend les tokens trouvés en cache."""
    blocks = manager.get_computed_blocks(request)
    cached = len(blocks) * manager.block_size
    count = request.num_tokens - cached if num_tokens is None else num_tokens
    assert manager.admit(request, count, blocks)
    request.num_computed_tokens += count
    return cached


def leave(manager: KVCacheManager, *requests: Request, keep_cached: bool = True) -> None:
    for request in requests:
        manager.free(request, keep_cached)
        request.num_computed_tokens = 0


def cached_tokens(manager: KVCacheManager, prompt: list[int]) -> int:
    return len(manager.get_computed_blocks(make_request("sonde", prompt))) * manager.block_size


def state(manager: KVCacheManager, request: Request) -> tuple:
    """Tout ce qu'une opération refusée ne doit pas changer, ordre de la file compris."""
    pool = manager.block_pool
    return copy.deepcopy(
        (
            list(pool.free_queue),
            pool.ref_counts,
            pool.block_hashes,
            pool.cached,
            manager.block_tables,
            request.num_computed_tokens,
            request.token_ids,
        )
    )


# Empreintes


def test_block_hashes_are_chained():
    """Le même bloc derrière un autre préfixe n'a ni les mêmes K et V, ni la même empreinte."""
    assert hash_block(hash_block(b"", A), B) != hash_block(hash_block(b"", C), B)
    assert hash_block(hash_block(b"", A), B) != hash_block(b"", B)
    assert hash_block(b"", A) != hash_block(b"", A[::-1])
    manager = KVCacheManager(16, BLOCK)
    request = make_request("a", [*A, *B, 0])
    enter(manager, request)
    assert cached_tokens(manager, [*A, *B, 0]) == 8
    assert cached_tokens(manager, [*C, *B, 0]) == 0
    assert cached_tokens(manager, [*B, 0]) == 0
    assert cached_tokens(manager, [*A, *C, 0]) == 4


def test_only_full_blocks_are_shared():
    manager = KVCacheManager(16, BLOCK)
    request = make_request("a", [*A, *B])
    enter(manager, request, num_tokens=7)
    assert cached_tokens(manager, [*A, *B, 0]) == 4, "le second bloc n'est pas plein"
    assert manager.allocate(request, 1)
    assert cached_tokens(manager, [*A, *B, 0]) == 8


def test_answer_tokens_are_cached_too():
    """Une conversation reprend : le tour suivant commence par la réponse du tour précédent."""
    manager = KVCacheManager(16, BLOCK)
    request = make_request("a", A, max_tokens=8)
    enter(manager, request)
    for token in B:
        request.append(token)
        assert manager.allocate(request, 1)
        request.num_computed_tokens += 1
    leave(manager, request)
    assert cached_tokens(manager, [*A, *B, *C]) == 8


def test_last_token_is_never_served_from_cache():
    """Il faut calculer ses logits : un prompt entièrement en cache recalcule son dernier bloc."""
    manager = KVCacheManager(16, BLOCK)
    first, second = make_request("a", [*A, *B]), make_request("b", [*A, *B])
    assert enter(manager, first) == 0
    assert enter(manager, second) == 4
    assert manager.block_tables["a"][0] == manager.block_tables["b"][0]
    assert manager.block_tables["a"][1] != manager.block_tables["b"][1]
    manager.check_integrity([first, second])
    assert cached_tokens(manager, A) == 0


def test_no_prefix_caching():
    manager = KVCacheManager(16, BLOCK, enable_prefix_caching=False)
    request = make_request("a", [*A, *B, 0])
    enter(manager, request)
    leave(manager, request)
    assert enter(manager, make_request("b", [*A, *B, 0])) == 0
    assert manager.block_pool.num_cached_blocks == 0


def test_the_oldest_of_two_equal_blocks_is_served():
    manager = KVCacheManager(16, BLOCK)
    first, second = make_request("a", A), make_request("b", A)
    enter(manager, first)
    enter(manager, second)  # recalcule A : son dernier token n'est pas servi par le cache
    (one,), (two,) = manager.block_tables["a"], manager.block_tables["b"]
    assert one != two
    assert manager.get_computed_blocks(make_request("c", [*A, 0])) == [one]
    leave(manager, first, keep_cached=False)
    assert manager.get_computed_blocks(make_request("c", [*A, 0])) == [two]
    manager.check_integrity([second])


# Partage, éviction


def test_reference_counts_follow_the_tables():
    manager = KVCacheManager(16, BLOCK)
    requests = [make_request(name, [*A, *B, k]) for k, name in enumerate("abc")]
    assert [enter(manager, request) for request in requests] == [0, 8, 8]
    shared = manager.block_tables["a"][:2]
    counts = manager.block_pool.ref_counts
    for left in (3, 2, 1):
        assert [counts[block] for block in shared] == [left, left]
        assert manager.num_free_blocks == 16 - 2 - left  # deux blocs partagés, un propre à chacune
        manager.check_integrity(requests)
        assert not set(shared) & set(manager.block_pool.free_queue)
        leave(manager, requests.pop(0))
    assert [counts[block] for block in shared] == [0, 0]
    assert manager.num_free_blocks == 16
    assert manager.usage == 0
    assert manager.block_pool.num_cached_blocks == 2


def test_eviction_takes_the_least_recently_used():
    """D'abord les blocs sans contenu, puis les plus anciens rendus ; dans une séquence, la fin avant le début."""
    manager = KVCacheManager(6, BLOCK)
    old, recent = make_request("vieille", [*A, *B, 0]), make_request("récente", [*C, *D, 0])
    enter(manager, old)
    enter(manager, recent)
    tables = {name: list(table) for name, table in manager.block_tables.items()}
    leave(manager, old, recent)
    expected = [tables["récente"][2], tables["vieille"][2], *tables["vieille"][1::-1], *tables["récente"][1::-1]]
    assert list(manager.block_pool.free_queue) == expected

    enter(manager, make_request("x", [1, 2, 3, 4, 5, 6, 7, 8, 9]))  # 3 blocs : les deux sans contenu, puis la fin de « vieille »
    assert cached_tokens(manager, [*A, *B, 0]) == 4
    assert cached_tokens(manager, [*C, *D, 0]) == 8


def test_a_hit_makes_a_block_recent_again():
    manager = KVCacheManager(4, BLOCK)
    for prompt in (A, B):
        request = make_request("r", [*prompt, 0])
        enter(manager, request)
        leave(manager, request)
    again = make_request("r", [*A, 0])
    assert enter(manager, again) == 4
    leave(manager, again)
    enter(manager, make_request("x", list(range(12))))
    assert (cached_tokens(manager, [*A, 0]), cached_tokens(manager, [*B, 0])) == (4, 0)


def test_a_taken_block_forgets_its_content():
    manager = KVCacheManager(2, BLOCK)
    request = make_request("a", [*A, *B])
    enter(manager, request)
    leave(manager, request)
    other = make_request("b", [*C, 0])
    enter(manager, other)
    assert cached_tokens(manager, [*A, *B, 0]) == 0
    manager.check_integrity([other])


# Refus : rien ne change


def test_admission_needs_room_for_the_whole_known_sequence():
    """Un premier morceau de 4 tokens tiendrait ; la séquence de 13, non."""
    manager = KVCacheManager(4, BLOCK)
    enter(manager, make_request("a", 4))
    request = make_request("b", 13)
    before = state(manager, request)
    assert not manager.admit(request, 4, [])
    assert state(manager, request) == before
    assert manager.admit(make_request("c", 12), 4, [])
    assert len(manager.block_tables["c"]) == 1, "seul le premier morceau prend un bloc"


def test_admission_counts_the_cached_blocks_it_takes_back():
    """Un bloc en cache et libre compte comme un bloc à prendre ; un bloc déjà utilisé ne coûte rien."""
    manager = KVCacheManager(4, BLOCK)
    holder = make_request("a", [*A, *B, 0])
    enter(manager, holder)
    request = make_request("b", [*A, *B, *C, 0])
    blocks = manager.get_computed_blocks(request)
    before = state(manager, request)
    assert not manager.admit(request, 5, blocks), "il manque deux blocs et il n'en reste qu'un"
    assert state(manager, request) == before
    leave(manager, holder)
    enter(manager, make_request("c", 4))
    assert manager.num_free_blocks == 3
    before = state(manager, request)
    assert not manager.admit(request, 5, blocks), "deux blocs repris et deux neufs, pour trois libres"
    assert state(manager, request) == before
    assert enter(manager, make_request("d", [*A, *B, *C])) == 8


def test_allocate_failure_changes_nothing():
    manager = KVCacheManager(3, BLOCK)
    request = make_request("a", 4)
    enter(manager, request)
    enter(manager, make_request("b", 4))
    request.token_ids += range(9)
    before = state(manager, request)
    assert not manager.allocate(request, 9)
    assert state(manager, request) == before
    assert manager.allocate(request, 4)


@pytest.mark.parametrize(("num_tokens", "blocks"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_block_is_taken_exactly_when_needed(num_tokens, blocks):
    manager = KVCacheManager(8, BLOCK)
    request = make_request("a", num_tokens)
    enter(manager, request)
    assert manager.num_blocks_for(num_tokens) == len(manager.block_tables["a"]) == blocks
    step_by_step = make_request("b", num_tokens)
    enter(manager, step_by_step, num_tokens=1)
    while step_by_step.num_computed_tokens < num_tokens:
        assert manager.allocate(step_by_step, 1)
        step_by_step.num_computed_tokens += 1
        assert len(manager.block_tables["b"]) == -(-step_by_step.num_computed_tokens // BLOCK)


# Oubli


def test_free_without_keeping_forgets_the_content():
    """Un calcul interrompu a pu écrire n'importe quoi : personne ne doit le retrouver, pas même par un bloc partagé."""
    manager = KVCacheManager(8, BLOCK)
    first, second = make_request("a", [*A, *B, 0]), make_request("b", [*A, *B, 1])
    enter(manager, first)
    assert enter(manager, second) == 8
    leave(manager, first, keep_cached=False)
    assert cached_tokens(manager, [*A, *B, 0]) == 0
    manager.check_integrity([second])
    leave(manager, second)
    assert manager.block_pool.num_cached_blocks == 0
    assert manager.num_free_blocks == 8


def test_reset_prefix_cache_keeps_the_tables():
    manager = KVCacheManager(8, BLOCK)
    running, done = make_request("a", [*A, 0]), make_request("b", [*B, 0])
    enter(manager, running)
    enter(manager, done)
    leave(manager, done)
    table = list(manager.block_tables["a"])
    manager.reset_prefix_cache()
    assert manager.block_tables == {"a": table}
    assert manager.block_pool.num_cached_blocks == 0
    assert cached_tokens(manager, [*A, 0]) == cached_tokens(manager, [*B, 0]) == 0
    manager.check_integrity([running])
    for token in (1, 2, 3):  # le bloc suivant se remplit et reçoit une empreinte, mais son début n'est plus en cache
        running.append(token)
    assert manager.allocate(running, 3)
    assert cached_tokens(manager, [*A, 0, 1, 2, 3, 9]) == 0
    manager.check_integrity([running])


# Le contrôle d'intégrité sait échouer


def corrupt_count(manager, requests):
    manager.block_pool.ref_counts[manager.block_tables["a"][0]] += 1


def corrupt_lost_count(manager, requests):
    manager.block_pool.ref_counts[manager.block_tables["b"][-1]] = 0


def corrupt_used_and_free(manager, requests):
    manager.block_pool.free_queue[manager.block_tables["a"][0]] = None


def corrupt_lost_block(manager, requests):
    manager.block_pool.free_queue.popitem()


def corrupt_table_held_twice(manager, requests):
    manager.block_tables["b"].append(manager.block_tables["a"][-1])


def corrupt_hash_without_map(manager, requests):
    manager.block_pool.cached.clear()


def corrupt_map_without_hash(manager, requests):
    manager.block_pool.block_hashes[manager.block_tables["a"][0]] = None


def corrupt_wrong_content(manager, requests):
    """La carte et le bloc s'accordent, mais sur l'empreinte d'un autre contenu."""
    block = manager.block_tables["a"][1]
    manager.block_pool.forget(block)
    manager.block_pool.remember(block, hash_block(b"", B))  # B seul, sans A devant lui


def corrupt_swapped_table(manager, requests):
    table = manager.block_tables["a"]
    table[0], table[1] = table[1], table[0]


def corrupt_hash_of_unfilled_block(manager, requests):
    manager.block_pool.remember(manager.block_tables["a"][2], hash_block(b"", C))


def corrupt_stale_hash_in_map(manager, requests):
    """Une empreinte périmée désigne encore un bloc qui a changé de contenu."""
    pool, block = manager.block_pool, manager.block_tables["a"][0]
    pool.cached = {hash_block(b"", C): {block: None}, **pool.cached}


def corrupt_missing_slot(manager, requests):
    requests[0].num_computed_tokens = len(manager.block_tables["a"]) * BLOCK + 1


def corrupt_table_without_request(manager, requests):
    requests.pop()


def corrupt_request_without_table(manager, requests):
    requests.append(make_request("c", 3))


CORRUPTIONS = {
    corrupt_count: "compteur 3, mais 2 table",
    corrupt_lost_count: "compteur 0, mais 1 table",
    corrupt_used_and_free: "utilisé et libre à la fois",
    corrupt_lost_block: "≠ 8",
    corrupt_table_held_twice: "compteur 1, mais 2 table",
    corrupt_hash_without_map: "la table de recherche",
    corrupt_map_without_hash: "la table de recherche",
    corrupt_wrong_content: "l'empreinte d'un autre contenu",
    corrupt_swapped_table: "l'empreinte d'un autre contenu",
    corrupt_hash_of_unfilled_block: "l'empreinte d'un autre contenu",
    corrupt_stale_hash_in_map: "la table de recherche",
    corrupt_missing_slot: "tokens calculés pour 3 blocs",
    corrupt_table_without_request: r"requêtes sans table : \['b'\]",
    corrupt_request_without_table: r"requêtes sans table : \['c'\]",
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda f: f.__name__.removeprefix("corrupt_"))
def test_check_integrity_catches(corrupt):
    manager = KVCacheManager(8, BLOCK)
    requests = [make_request("a", [*A, *B, 0]), make_request("b", [*A, 1, 2])]
    for request in requests:
        enter(manager, request)
    manager.check_integrity(requests)
    corrupt(manager, requests)
    with pytest.raises(CacheIntegrityError, match=CORRUPTIONS[corrupt]):
        manager.check_integrity(requests)


# Réglages


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (-1, 4), (4, 0), (True, 4), (4, True), (2.0, 4), (4, "4")])
def test_impossible_sizes_are_refused(num_blocks, block_size):
    with pytest.raises(ConfigError, match="entier"):
        KVCacheManager(num_blocks, block_size)
