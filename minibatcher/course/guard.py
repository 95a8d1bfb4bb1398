"""Exécuter le code d'une personne sans qu'il arrête, bloque ou fausse la vérification.

Ce que fait `Guard.run` :

- toute exception est rapportée, `SystemExit` et un `KeyboardInterrupt` levé par le code compris ; un vrai Ctrl-C, lui, interrompt ;
- une boucle trop longue est coupée : par `signal.setitimer` dans le fil principal de Linux et macOS, ailleurs (Windows, autre
  fil) par une exception que lui envoie un fil de garde ;
- ce qui est affiché est gardé, raccourci ;
- ce que le code a remplacé dans `builtins`, `random` ou la vérification elle-même est remis en place.

Ce qu'aucune garde ne peut assurer dans un même processus : couper un long calcul en C (`sum(range(10**12))`) ou une boucle qui
avale toutes les exceptions, survivre à `os._exit`, limiter la mémoire, empêcher d'écrire des fichiers, ni résister à qui modifie
les objets de la vérification (`fonction.__code__`, cadres d'exécution). Ici, la personne vérifie son propre travail ; pour noter
une classe, le correcteur isole chaque copie dans un processus, et un compte rendu absent y vaut zéro.
"""

import contextlib
import ctypes
import io
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

_RESTORED = ("builtins", "random", "math", "copy", "inspect", "signal", "time", "threading", "minibatcher.errors")
_RESTORED_UNDER = ("minibatcher.course", "minibatcher.simulation")


class TimeLimit(BaseException):
    """Le temps accordé est écoulé. Pas une `Exception` : un `except Exception` ordinaire ne l'avale pas."""


@dataclass(frozen=True)
class Outcome:
    """Ce qu'un appel a donné : `value`, ou `error` s'il a levé une exception."""

    value: object = None
    error: BaseException | None = None


class Printed(io.TextIOBase):
    """Ce que le code affiche : le début seulement, et le nombre total de caractères."""

    KEPT = 400

    def __init__(self) -> None:
        self.start, self.total = "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.total += len(text)
        if len(self.start) < self.KEPT:
            self.start += str(text)[: self.KEPT - len(self.start)]
        return len(text)

    def __str__(self) -> str:
        return self.start if self.total <= self.KEPT else f"{self.start}… ({self.total} caractères en tout)"


class Snapshot:
    """Les noms des modules dont la vérification dépend, pour les remettre comme ils étaient."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name in _RESTORED or name.startswith(_RESTORED_UNDER)]
        self._saved = [(vars(sys.modules[name]), dict(vars(sys.modules[name])), name != "builtins") for name in names]

    # Les arguments par défaut gardent les vrais, quoi que le code ait mis dans builtins.
    def restore(self, _type=type, _list=list, _module=ModuleType) -> None:
        for live, saved, prune in self._saved:
            live.update(saved)
            if prune:  # un nom ajouté peut en cacher un de builtins ; un sous-module, lui, vient d'un import ordinaire
                for name in [name for name in _list(live) if name not in saved and _type(live[name]) is not _module]:
                    del live[name]


class _Signals:
    """Dans le fil principal : un minuteur qui lève `TimeLimit`, et un Ctrl-C que l'on sait distinguer d'un `raise`."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.armed, self.fired, self.interrupted = seconds, False, False, False
        self.old_interrupt = self.old_alarm = self.old_timer = None
        self.began = time.monotonic()

    def start(self) -> None:
        self.old_interrupt = signal.getsignal(signal.SIGINT)
        if callable(self.old_interrupt):
            signal.signal(signal.SIGINT, self._on_interrupt)
        self.old_alarm = signal.signal(signal.SIGALRM, self._on_alarm)
        # Répété : un `except:` nu avale la première exception, rarement toutes.
        self.old_timer = signal.setitimer(signal.ITIMER_REAL, max(self.seconds, 0.001), 0.1)
        self.armed = True

    def stop(self) -> None:
        self.armed = False
        if self.old_timer is not None:
            remaining, interval = self.old_timer  # celui de quelqu'un d'autre, pytest-timeout par exemple
            left = max(remaining - time.monotonic() + self.began, 0.001) if remaining else 0
            signal.setitimer(signal.ITIMER_REAL, left, interval)
            signal.signal(signal.SIGALRM, self.old_alarm or signal.SIG_DFL)
        if callable(self.old_interrupt):
            signal.signal(signal.SIGINT, self.old_interrupt)

    def _on_alarm(self, signum: int, frame: object) -> None:
        if self.armed:
            self.fired = True
            raise TimeLimit

    def _on_interrupt(self, signum: int, frame: object) -> None:
        self.interrupted = True
        if self.armed:
            raise KeyboardInterrupt


class _Watchdog:
    """Ailleurs : un fil de garde envoie `TimeLimit` au fil qui calcule. Ctrl-C n'arrive que dans le fil principal."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.armed, self.fired, self.interrupted = seconds, False, False, False
        self.thread = ctypes.c_ulong(threading.get_ident())
        self.lock, self.done = threading.Lock(), threading.Event()

    def start(self) -> None:
        self.armed = True
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        while not self.done.is_set():
            try:
                self.armed = False
                with self.lock:  # envoyée trop tard, elle n'a plus à arriver
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(self.thread, None)
                self.done.set()
            except TimeLimit:  # arrivée ici même : on recommence
                continue

    def _watch(self) -> None:
        pause = self.seconds
        while not self.done.wait(pause):
            with self.lock:
                if self.armed:
                    self.fired = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(self.thread, ctypes.py_object(TimeLimit))
            pause = 0.1


class Guard:
    """Un budget de temps (secondes) que les appels se partagent. `timed_out` : il est épuisé ; `printed` garde l'affichage."""

    def __init__(self, seconds: float, snapshot: Snapshot, printed: Printed | None) -> None:
        self.remaining, self.snapshot, self.printed = seconds, snapshot, printed
        self.timed_out = False
        main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        self._limit = _Signals if main else _Watchdog

    def run(self, function: Callable, *args: object) -> Outcome:
        """Appelle `function(*args)`. L'erreur est `TimeLimit` si le budget est épuisé. Un vrai Ctrl-C lève `KeyboardInterrupt`."""
        limit = self._limit(self.remaining)
        began = time.monotonic()
        outcome = Outcome(error=TimeLimit())
        try:
            with contextlib.ExitStack() as stack:
                if self.printed is not None:
                    stack.enter_context(contextlib.redirect_stdout(self.printed))
                    stack.enter_context(contextlib.redirect_stderr(self.printed))
                limit.start()
                try:
                    outcome = Outcome(function(*args))
                except BaseException as error:  # rapportée par l'appelant
                    outcome = Outcome(error=error)
                limit.armed = False
        except (TimeLimit, KeyboardInterrupt):  # arrivé juste à la sortie
            pass
        finally:
            limit.armed = False
            self.snapshot.restore()  # avant tout : `signal` et `time` servent à la suite
            limit.stop()
        self.remaining = max(self.remaining - time.monotonic() + began, 0.001)
        if limit.interrupted:
            raise KeyboardInterrupt
        if limit.fired:  # même si le code l'a avalée et a rendu quelque chose
            self.timed_out = True
            return outcome if isinstance(outcome.error, TimeLimit) else Outcome(error=TimeLimit())
        return outcome
