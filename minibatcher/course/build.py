"""Des sources aux carnets : notebooks/sources/NN_nom.py (py:percent) donne notebooks/NN_nom.ipynb.

`python -m minibatcher.course.build` écrit les carnets, `--check` dit lesquels ne sont plus à jour. Une source ne contient que ce
que quelqu'un écrit ; la construction ajoute la cellule de mise en place, le code cité du paquet, l'exercice, les liens, le badge et
les espaces insécables.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from minibatcher.course.cite import cite_cell
from minibatcher.course.exercises import cell_source
from minibatcher.course.lessons import LESSONS, Lesson
from minibatcher.course.places import ExerciseError
from minibatcher.course.publication import Publication, read_publication
from minibatcher.course.source import BuildError, Cell, read_source
from minibatcher.course.typography import fix_typography
from minibatcher.errors import MinibatcherError

ROOT = Path(__file__).resolve().parents[2]
SETUP_CELL = Path(__file__).with_name("setup_cell.txt")
_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


def source_path(root: Path, lesson: Lesson) -> Path:
    """La source de ce carnet."""
    return root / "notebooks" / "sources" / f"{lesson.id}.py"


def check_sources(root: Path, lessons: Sequence[Lesson] = LESSONS) -> None:
    """Les sources présentes sont celles des carnets écrits, ni plus ni moins. Sinon lève `BuildError`."""
    present = {path.stem for path in (root / "notebooks" / "sources").glob("*.py")}
    written = {lesson.id for lesson in lessons if lesson.written}
    if missing := sorted(written - present):
        raise BuildError(f"notebooks/sources : il manque {', '.join(missing)}, que lessons.py dit écrits.")
    if unknown := sorted(present - {lesson.id for lesson in lessons}):
        raise BuildError(f"notebooks/sources : {', '.join(unknown)} ne figure pas dans minibatcher/course/lessons.py.")
    if drafts := sorted(present - written):
        raise BuildError(
            f"notebooks/sources : {', '.join(drafts)} existe ; mettez written=True dans minibatcher/course/lessons.py."
        )


def build_notebook(root: Path, lesson: Lesson, lessons: Sequence[Lesson] = LESSONS):
    """Le carnet (NotebookNode) de cette leçon. Lève `BuildError`, avec la ligne de la source."""
    from nbformat import v4

    publication = read_publication(root)
    notebook = v4.new_notebook(metadata=_metadata(lesson))
    ids: dict[str, int] = {}

    def add(kind: str, text: str, name: str | None = None, tags: Sequence[str] = ()) -> None:
        # L'identifiant vient du contenu : modifier une cellule, en ajouter ou en déplacer une ne change pas ceux des autres.
        name = name or hashlib.sha256(f"{lesson.id}\n{kind}\n{text}".encode()).hexdigest()[:12]
        ids[name] = ids.get(name, 0) + 1
        new = v4.new_markdown_cell if kind == "markdown" else v4.new_code_cell
        metadata = {"tags": list(tags)} if tags else {}
        notebook.cells.append(new(text, id=name if ids[name] == 1 else f"{name}-{ids[name]}", metadata=metadata))

    if url := publication.colab_url(lesson.id):
        add("markdown", f"[![Ouvrir dans Colab]({_BADGE})]({url})", "badge-colab")
    for cell in read_source(source_path(root, lesson)):
        if "mise-en-place" in cell.tags:
            add("code", setup_text(publication), "mise-en-place", cell.tags)
        elif "cite" in cell.tags:
            add("markdown", _cited(root, cell), None, cell.tags)
        elif "exercice" in cell.tags:
            add("code", _exercise(lesson, cell), f"exercice-{lesson.exercise}", cell.tags)
        else:
            add(cell.kind, fix_typography(cell.text) if cell.is_prose else cell.text, None, cell.tags)
    add("markdown", _navigation(lesson, lessons), "navigation", ("navigation",))
    return notebook


def setup_text(publication: Publication) -> str:
    """La cellule de mise en place, la même pour tous les carnets."""
    return SETUP_CELL.read_text(encoding="utf-8").replace("@ADDRESS@", publication.pip_source).strip("\n")


def _metadata(lesson: Lesson) -> dict:
    metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if lesson.gpu != "inutile":
        metadata |= {"accelerator": "GPU", "colab": {"gpuType": "T4"}}
    return metadata


def _cited(root: Path, cell: Cell) -> str:
    blocks = []
    for offset, reference in enumerate(cell.text.split("\n")):
        if not reference.strip():
            continue
        try:
            blocks.append(cite_cell(root, reference.strip()))
        except BuildError as problem:
            raise cell.error(str(problem), offset) from None
    if not blocks:
        raise cell.error("cette cellule « cite » ne cite rien ; écrivez par exemple minibatcher/request.py::Request.")
    return "\n\n".join(blocks)


def _exercise(lesson: Lesson, cell: Cell) -> str:
    name = cell.text.strip().removeprefix("#").strip()
    if name != lesson.exercise:
        raise cell.error(f"exercice « {name} » ; pour ce carnet, lessons.py annonce {lesson.exercise or 'aucun exercice'}.")
    try:
        return f"%%exercice {name}\n" + cell_source(name).strip("\n")
    except ExerciseError as problem:
        raise cell.error(str(problem)) from None


def _navigation(lesson: Lesson, lessons: Sequence[Lesson]) -> str:
    rank = lessons.index(lesson)
    links = [_link("Le carnet d'avant", other) for other in reversed(lessons[:rank]) if other.written][:1]
    links += [_link("La suite", other) for other in lessons[rank + 1 : rank + 2]]
    return fix_typography("---\n\n" + " · ".join(links))


def _link(label: str, lesson: Lesson) -> str:
    title = f"{lesson.number} — {lesson.title}"
    return f"{label} : " + (f"[{title}]({lesson.id}.ipynb)" if lesson.written else f"{title} (à paraître)")


def notebook_text(notebook) -> str:
    """Le fichier .ipynb, toujours les mêmes octets pour le même carnet."""
    import nbformat

    nbformat.validate(notebook)
    return nbformat.writes(notebook, indent=1, ensure_ascii=False, sort_keys=True).rstrip("\n") + "\n"


def build_all(root: Path = ROOT, lessons: Sequence[Lesson] = LESSONS) -> dict[Path, str]:
    """Chaque carnet écrit : son chemin, et le texte que doit avoir son fichier."""
    check_sources(root, lessons)
    written = [lesson for lesson in lessons if lesson.written]
    return {root / "notebooks" / f"{one.id}.ipynb": notebook_text(build_notebook(root, one, lessons)) for one in written}


def stale_notebooks(root: Path = ROOT, lessons: Sequence[Lesson] = LESSONS) -> list[str]:
    """Les carnets qui ne sont pas ceux que donnent leurs sources, chacun avec la raison."""
    built, folder = build_all(root, lessons), root / "notebooks"
    problems = [f"{path.name} : aucune source ne le produit" for path in sorted(folder.glob("*.ipynb")) if path not in built]
    for path, text in built.items():
        if not path.is_file():
            problems.append(f"{path.name} : pas encore construit")
        elif path.read_text(encoding="utf-8") != text:
            problems.append(f"{path.name} : ne correspond plus à sa source ou au code qu'il cite")
    return problems


def main(argv: Sequence[str] | None = None, root: Path = ROOT, lessons: Sequence[Lesson] = LESSONS) -> int:
    """Construit les carnets, ou (`--check`) rend 1 en nommant ceux qui ne sont plus à jour. Rend 2 pour une source fautive."""
    parser = argparse.ArgumentParser(
        prog="python -m minibatcher.course.build", description="Construit les carnets depuis leurs sources."
    )
    parser.add_argument("--check", action="store_true", help="n'écrit rien ; échoue si un carnet n'est plus à jour")
    args = parser.parse_args(argv)
    try:
        if args.check:
            problems = stale_notebooks(root, lessons)
            if problems:
                print(
                    "Carnets à reconstruire (make notebooks) :\n" + "\n".join(f"  {problem}" for problem in problems),
                    file=sys.stderr,
                )
            return 1 if problems else 0
        for path, text in build_all(root, lessons).items():
            path.write_text(text, encoding="utf-8", newline="\n")
            print(path.relative_to(root))
        return 0
    except MinibatcherError as problem:
        print(f"Carnets : {problem}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as problem:
        print(f"Carnets : il manque le paquet {problem.name!r}. Installez-le avec : pip install -e '.[dev]'", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
