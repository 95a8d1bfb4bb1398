"""Ce qu'une vérification peut demander à une réponse : l'appeler, la comparer, reconnaître son erreur.

La réponse n'est jamais crue : elle reçoit des copies, ses résultats ne sont regardés qu'une fois leur type vérifié.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType

import minibatcher
from minibatcher.course.compare import difference, kind, show, wrong_type
from minibatcher.course.contract import Contract, Exercise, Named
from minibatcher.course.guard import Guard, Outcome
from minibatcher.course.learner import Learner
from minibatcher.course.report import Status

_PACKAGE = str(Path(minibatcher.__file__).parent)


class Verdict(Exception):
    """Une vérification n'est pas réussie ; `details` : les champs de `CheckResult`."""

    def __init__(self, status: Status, explanation: str, **details: object) -> None:
        super().__init__(explanation)
        self.details = {"status": status, "explanation": explanation, **details}


class Trial:
    """La réponse d'une personne devant une vérification. Une méthode qui échoue lève `Verdict`."""

    def __init__(self, exercise: Exercise, learner: Learner, guard: Guard) -> None:
        self.exercise, self.learner, self.guard = exercise, learner, guard
        self.last_call = ""
        self.num_calls = 0
        self._functions: dict[str, Callable] = {}

    def call(self, name: str, *args: object) -> object:
        """Ce que rend la fonction pour une copie de ces arguments, ses types vérifiés : on peut s'en servir sans risque."""
        got = self._value(name, args)
        self._check_type(name, got, None)
        return got

    def compare(
        self, name: str, cases: Iterable[Sequence], reference: Callable, part: str | None = None, tolerance: float = 1e-9
    ) -> None:
        """Sur chaque cas (une suite d'arguments), la fonction rend-elle ce que rend `reference` ?

        `part` : ne regarder que cet élément du tuple rendu ; `tolerance` : écart relatif admis entre flottants.
        Le premier cas faux est montré. Les autres servent à reconnaître l'erreur : une erreur fréquente est nommée si elle donne
        exactement les mêmes résultats sur tous.
        """
        returns = self.exercise.functions[name].returns
        labels = [f"« {label} »" for label in returns] if part is None and isinstance(returns, dict) else ()
        seen: list[tuple[tuple, object]] = []
        first: Verdict | None = None
        for case in cases:
            args = tuple(arg.value if isinstance(arg, Named) else arg for arg in case)
            expected = self._part(name, reference(*copy.deepcopy(args)), part)
            try:
                got = self._value(name, case)
                self._check_type(name, got, part)
            except Verdict:
                if first is None:
                    raise
                break
            got = self._part(name, got, part)
            seen.append((args, got))
            problem = difference(expected, got, f"« {part} »" if part else "le résultat", tolerance, labels)
            if problem and first is None:
                label = f"{part} = " if part else ""
                first = self._verdict(problem, expected=label + show(expected), got=label + show(got))
        if first is not None:
            if named := self._recognize(name, seen, part, tolerance):
                first.details |= {"misconception": named, "explanation": ""}
            raise first

    def raises(self, name: str, cases: Iterable[tuple], error: type[Exception] = ValueError) -> None:
        """Sur chacun de ces cas, la fonction lève-t-elle `error` ?"""
        expected = f"{error.__name__}"
        for case in cases:
            outcome = self._outcome(name, case)
            if outcome.error is None:
                raise self._verdict(f"Cet appel doit lever {expected}.", expected=expected, got=show(outcome.value))
            if not isinstance(outcome.error, error):
                self._raise_error(outcome.error, f" Cet appel doit lever {expected}.", expected=expected)

    def unchanged(self, name: str, cases: Iterable[tuple]) -> None:
        """La fonction laisse-t-elle ses arguments tels qu'elle les a reçus ?"""
        for case in cases:
            args = copy.deepcopy(case)
            outcome = self._outcome(name, args, copied=False)
            if outcome.error is not None:
                self._raise_error(outcome.error)
            for parameter, before, after in zip(self.exercise.functions[name].parameters, case, args, strict=True):
                if difference(before, after) is not None:
                    explanation = f"La fonction modifie « {parameter} », qui ne lui appartient pas : travaillez sur une copie."
                    raise self._verdict(explanation, expected=f"{parameter} = {show(before)}", got=f"{parameter} = {show(after)}")

    def require(self, condition: bool, explanation: str, expected: str = "", got: str = "") -> None:
        """Une propriété des valeurs rendues par `call` ; `explanation` dit ce qui ne va pas."""
        if condition is not True:
            raise self._verdict(explanation, expected=expected, got=got)

    def _value(self, name: str, case: Sequence) -> object:
        outcome = self._outcome(name, case)
        if outcome.error is not None:
            self._raise_error(outcome.error)
        return outcome.value

    def _outcome(self, name: str, case: Sequence, copied: bool = True) -> Outcome:
        contract = self.exercise.functions[name]
        if name not in self._functions:
            self._functions[name] = self._function(name, contract)
        shown = ", ".join(arg.name if isinstance(arg, Named) else show(arg) for arg in case)
        self.last_call = f"{name}({shown})"
        self.num_calls += 1
        args = [arg.value if isinstance(arg, Named) else arg for arg in case]
        return self.guard.run(self._functions[name], *(copy.deepcopy(args) if copied else args))

    def _function(self, name: str, contract: Contract) -> Callable:
        function = vars(self.learner.module).get(name)
        wanted = f"def {name}({', '.join(contract.parameters)})"
        if name not in vars(self.learner.module):
            raise Verdict(Status.ERROR, f"La fonction {name} est absente. Écrivez : {wanted}.")
        if type(function) is not FunctionType:
            raise Verdict(Status.ERROR, f"{name} doit être une fonction ({wanted}), et non {kind(function)}.")
        written_in = function.__code__.co_filename
        if written_in.startswith(_PACKAGE) and written_in != self.learner.filename:  # dans la roue, l'exercice vide est aussi là
            raise Verdict(Status.ERROR, f"{name} vient du paquet minibatcher : écrivez la vôtre.")
        binding = self.guard.run(lambda: inspect.signature(function).bind(*contract.parameters) and None)
        if binding.error is not None:
            raise Verdict(Status.ERROR, f"{name} doit accepter {len(contract.parameters)} arguments : {wanted}.")
        return function

    def _check_type(self, name: str, got: object, part: str | None) -> None:
        contract = self.exercise.functions[name]
        if problem := _type_problem(contract.returns, got, part):
            raise self._verdict(problem, expected=contract.shape, got=show(got))

    def _part(self, name: str, value: object, part: str | None) -> object:
        return value if part is None else value[list(self.exercise.functions[name].returns).index(part)]

    def _recognize(self, name: str, seen: list[tuple[tuple, object]], part: str | None, tolerance: float) -> str:
        for misconception in self.exercise.misconceptions.get(name, ()):
            try:
                given = ((self._part(name, misconception.function(*copy.deepcopy(args)), part), got) for args, got in seen)
                if all(difference(wrong, got, tolerance=tolerance) is None for wrong, got in given):
                    return misconception.text
            except Exception:  # elle échoue là où la réponse a rendu quelque chose : ce n'est pas elle
                continue
        return ""

    def _verdict(self, explanation: str, **details: str) -> Verdict:
        return Verdict(Status.WRONG, explanation[0].upper() + explanation[1:], call=self.last_call, **details)

    def _raise_error(self, error: BaseException, more: str = "", **details: str) -> None:
        if isinstance(error, NotImplementedError):
            raise Verdict(Status.TODO, "Pas encore écrite.", call=self.last_call)
        explanation, line = self.learner.explain(error, self.guard)
        raise Verdict(Status.ERROR, explanation + more, call=self.last_call, line=line, **details)


def _type_problem(returns: type | dict[str, type], got: object, part: str | None) -> str | None:
    if not isinstance(returns, dict):
        return wrong_type(returns, got, "Le résultat")
    shape = f"({', '.join(returns)})"
    if problem := wrong_type(tuple, got, f"Le résultat {shape}"):
        return problem
    if len(got) != len(returns):
        return f"Le résultat doit avoir {len(returns)} éléments, {shape}, et non {len(got)}."
    pairs = zip(returns.items(), got, strict=True)
    problems = (wrong_type(cls, item, f"« {label} »") for (label, cls), item in pairs if part in (None, label))
    return next(filter(None, problems), None)
