"""Ctrl-C au bon moment : jamais au milieu d'une décision.

Python lève `KeyboardInterrupt` entre deux instructions quelconques. Au milieu du scheduler, il laisserait un bloc pris mais rangé
nulle part, ou une empreinte sans contenu. L'exécution, elle, peut s'interrompre : elle sait se défaire.
"""

import signal
import threading


class Uninterrupted:
    """`with Uninterrupted():` — un Ctrl-C arrivé pendant le bloc est levé à sa sortie. Sans effet hors du fil principal."""

    def __enter__(self) -> None:
        self.arrived = False
        previous = signal.getsignal(signal.SIGINT)
        self.previous = previous if callable(previous) and threading.current_thread() is threading.main_thread() else None
        if self.previous is not None:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, signum: int, frame: object) -> None:
        self.arrived = True

    def __exit__(self, *exception: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)
            if self.arrived:
                self.previous(signal.SIGINT, None)
