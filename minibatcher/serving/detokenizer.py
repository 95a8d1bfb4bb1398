"""Des tokens au texte, au fil de l'eau : jamais un caractère coupé, et les chaînes d'arrêt surveillées."""

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Le texte d'une réponse.

    Un caractère (é, €, un émoji) peut s'étaler sur plusieurs tokens : il n'apparaît qu'une fois complet. `stop` : chaînes d'arrêt ;
    la réponse s'arrête avant la première trouvée, sauf si elle se termine avant `min_tokens` tokens.
    """

    def __init__(self, tokenizer, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._backend = tokenizer.backend_tokenizer
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self.token_ids: list[int] = []
        self.text = ""

    def push(self, token_ids: Sequence[int]) -> str | None:
        """Ajoute des tokens ; rend la chaîne d'arrêt rencontrée, ou `None`. `text` est alors déjà coupé."""
        for token_id in token_ids:
            self.token_ids.append(token_id)
            piece = self._stream.step(self._backend, token_id)
            if piece:
                self.text += piece
                if self._stop and len(self.token_ids) > self._min_tokens:
                    found = self._find_stop(len(piece))
                    if found is not None:
                        return found
        return None

    def visible(self, finished: bool) -> str:
        """Le texte que l'on peut montrer : sans la fin, tant qu'elle peut être le début d'une chaîne d'arrêt."""
        if finished or not self._stop:
            return self.text
        return self.text[: max(0, len(self.text) - max(map(len, self._stop)) + 1)]

    def finish(self) -> str:
        """Le texte complet, une fois le dernier token reçu (un caractère resté incomplet y devient « � »)."""
        full = self._tokenizer.decode(self.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if full.startswith(self.text):
            self.text = full
        return self.text

    def _find_stop(self, num_new_chars: int) -> str | None:
        best = None
        for stop in self._stop:
            # Une chaîne déjà vérifiée ne peut commencer que dans les derniers len(stop) - 1 caractères.
            position = self.text.find(stop, max(0, len(self.text) - num_new_chars - len(stop) + 1))
            if position >= 0 and (best is None or position < best[0]):
                best = (position, stop)
        if best is None:
            return None
        self.text = self.text[: best[0]]
        return best[1]
