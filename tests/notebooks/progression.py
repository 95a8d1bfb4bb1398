"""La progression du cours : un carnet n'importe que ce qui est déjà construit, et montre tout ce qu'il construit."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import minibatcher
from minibatcher.course.lessons import ALWAYS_ALLOWED, TOOLS, Lesson
from minibatcher.course.source import Cell

_TOOL_ROOMS = ("viz", "course")  # outils des carnets : importables dans l'ordre du cours, mais pas à citer


def package_modules(package: Path) -> set[str]:
    """Les modules du paquet, sans le préfixe : « simulation.slots ». Les `__init__` vides n'en sont pas."""
    files = (path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py")
    return {".".join(path.with_suffix("").parts) for path in files}


def is_core(module: str) -> bool:
    """Un module que le cours doit expliquer en le citant."""
    return module not in TOOLS and module.partition(".")[0] not in _TOOL_ROOMS


def unexplained_modules(lessons: Sequence[Lesson], modules: set[str]) -> list[str]:
    """Les modules du cœur qu'aucun carnet ne construit, ou que deux construisent."""
    owners: dict[str, list[str]] = {module: [] for module in sorted(modules) if is_core(module)}
    problems = []
    for lesson in lessons:
        for module in lesson.introduces:
            owners.setdefault(module, []).append(lesson.id)
            if lesson.written and module not in modules:
                problems.append(f"lessons.py, {lesson.id} : le module minibatcher.{module} n'existe pas")
    problems += [
        f"minibatcher.{module} n'est construit par aucun carnet de lessons.py" for module, found in owners.items() if not found
    ]
    return problems + [f"minibatcher.{m} est construit par {', '.join(found)}" for m, found in owners.items() if len(found) > 1]


def cited_modules(cells: list[Cell]) -> set[str]:
    """Les modules que citent ces cellules."""
    lines = [line.partition("::")[0].strip() for cell in cells if "cite" in cell.tags for line in cell.text.split("\n")]
    paths = [line.removeprefix("minibatcher/").removesuffix(".py") for line in lines if line.startswith("minibatcher/")]
    return {path.replace("/", ".") for path in paths}


def citation_problems(lessons: Sequence[Lesson], cited: dict[str, set[str]]) -> list[str]:
    """`cited` : par carnet écrit, les modules qu'il cite. Chacun cite ce qu'il construit ; personne ne cite le cœur d'un autre."""
    owner = {module: lesson.id for lesson in lessons for module in lesson.introduces}
    problems = []
    for lesson in lessons:
        if lesson.id not in cited:
            continue
        missing = [module for module in lesson.introduces if is_core(module) and module not in cited[lesson.id]]
        problems += [f"{lesson.id} construit minibatcher.{module} sans le citer" for module in missing]
        foreign = [module for module in sorted(cited[lesson.id]) if is_core(module) and owner.get(module) != lesson.id]
        problems += [
            f"{lesson.id} cite minibatcher.{module}, que construit {owner.get(module, 'aucun carnet')}" for module in foreign
        ]
    return problems


def allowed_modules(lesson: Lesson, lessons: Sequence[Lesson]) -> set[str]:
    """Ce que ce carnet peut importer : ce qu'ont construit les carnets jusqu'à lui, et ce qui est permis partout."""
    before = lessons[: lessons.index(lesson) + 1]
    return {module for each in before for module in each.introduces} | set(ALWAYS_ALLOWED)


def import_problems(lesson: Lesson, lessons: Sequence[Lesson], notebook, modules: set[str]) -> list[str]:
    """Les imports de ce carnet qui sont en avance sur le cours."""
    allowed, problems = allowed_modules(lesson, lessons), []
    for rank, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        try:
            tree = ast.parse(_without_magics(cell.source))
        except SyntaxError as problem:
            problems.append(f"{lesson.id}, cellule {rank} : ce n'est pas du Python ({problem})")
            continue
        for module in dict.fromkeys(_imported(tree, modules)):
            if module.partition(".")[0] != "course" and module not in allowed:
                builder = next((each.id for each in lessons if module in each.introduces), "aucun carnet")
                problems.append(f"{lesson.id}, cellule {rank} : importe minibatcher.{module}, que construit {builder}")
    return problems


def _without_magics(source: str) -> str:
    return re.sub(r"^(\s*)(?:%%.*|[%!][a-zA-Z].*)$", r"\1pass", source, flags=re.MULTILINE)


def _imported(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("minibatcher."):
                    yield alias.name.removeprefix("minibatcher.")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "minibatcher":
            base = (node.module or "").partition(".")[2]
            for alias in node.names:
                yield _owner(base, alias.name, modules)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "minibatcher":
            yield from [_owner("", name, modules) for name in [node.attr] if name in minibatcher._PUBLIC]  # minibatcher.LLM


def _owner(base: str, name: str, modules: set[str]) -> str:
    """Le module d'où vient `from minibatcher.base import name`."""
    if not base and name in minibatcher._PUBLIC:
        return minibatcher._PUBLIC[name].removeprefix("minibatcher.")
    inner = f"{base}.{name}" if base else name
    return inner if inner in modules else base or name
