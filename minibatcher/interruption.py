"""Ctrl-C au bon moment : jamais au milieu d'une décision.

Python lève `KeyboardInterrupt` entre deux instructions quelconques. Au milieu du scheduler, il laisserait un bloc pris mais rangé
nulle part, ou une empreinte sans contenu. L'exécution, elle, peut s'interrompre : elle sait se défaire.
"""

import signal
import threading


class Uninterrupted:
    """`with Uninterrupted():` — un Ctrl-C arrivé pendant le bloc est levé à sa sortie. Sans effet hors du fil principal.

    Dans un autre bloc du même genre, celui-ci ne fait rien : le plus extérieur lèvera.
    """

    _protected = False  # le fil principal est déjà dans un tel bloc

    def __enter__(self) -> None:
        self.arrived = False
        self.previous = None
        if Uninterrupted._protected or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGINT)
        if callable(previous):
            self.previous = previous
            signal.signal(signal.SIGINT, self._note)
            Uninterrupted._protected = True

    def _note(self, signum: int, frame: object) -> None:
        self.arrived = True

    def __exit__(self, *exception: object) -> None:
        if self.previous is not None:
            Uninterrupted._protected = False
            signal.signal(signal.SIGINT, self.previous)
            if self.arrived:
                self.previous(signal.SIGINT, None)
