"""La ligne de commande : `minibatcher demo`, `minibatcher simulate`, et les commandes que la suite du cours ajoute."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minibatcher.errors import MinibatcherError, require_int

# argparse parle anglais ; ces phrases sont celles qu'une personne peut voir.
_FRENCH = {
    "usage: ": "usage : ",
    "options": "options",
    "positional arguments": "commandes",
    "show this help message and exit": "affiche cette aide",
    "show program's version number and exit": "affiche la version",
    "%(prog)s: error: %(message)s\n": "%(prog)s : erreur : %(message)s\n",
    "the following arguments are required: %s": "il manque : %s",
    "unrecognized arguments: %s": "arguments inconnus : %s",
    "expected one argument": "une valeur est attendue",
    "invalid %(type)s value: %(value)r": "valeur %(value)r impossible (type attendu : %(type)s)",
    "invalid choice: %(value)r (choose from %(choices)s)": "%(value)r inconnu (au choix : %(choices)s)",
    "argument %(argument_name)s: %(message)s": "argument %(argument_name)s : %(message)s",
    "expected at least one argument": "au moins une valeur est attendue",
    "not allowed with argument %s": "incompatible avec %s",
    "ambiguous option: %(option)s could match %(matches)s": "option ambiguë : %(option)s peut être %(matches)s",
}


def _parser() -> argparse.ArgumentParser:
    from minibatcher import __version__
    from minibatcher.course.command import add_check_command
    from minibatcher.course.doctor import add_doctor_command
    from minibatcher.simulation.command import add_simulate_options

    argparse._ = lambda text: _FRENCH.get(text, text)  # le point de traduction d'argparse
    parser = argparse.ArgumentParser(prog="minibatcher", description="Un moteur minimal de continuous batching pour LLM.")
    parser.add_argument("--version", action="version", version=f"minibatcher {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="commande", required=True)
    demo = commands.add_parser(
        "demo",
        help="un vrai modèle, servi par transformers puis par minibatcher",
        description="Sert 32 prompts avec transformers puis avec minibatcher, compare débits, latences et mots produits.",
    )
    demo.add_argument("--model", default="smollm2", help="modèle : dossier, identifiant du hub, ou « smollm2 » (défaut)")
    demo.add_argument("--max-tokens", type=int, default=64, help="tokens produits par prompt (défaut : 64)")
    demo.add_argument("--out", type=Path, default=Path("resultats/demo"), help="dossier des résultats (défaut : resultats/demo)")
    demo.set_defaults(run=_demo)
    simulate = commands.add_parser(
        "simulate",
        help="la même file d'attente sous une horloge virtuelle, sans modèle ni GPU",
        description="Simule le service d'une charge. Une option qui accepte plusieurs valeurs les compare toutes.",
    )
    add_simulate_options(simulate)
    add_check_command(commands)
    add_doctor_command(commands)
    return parser


def _demo(args: argparse.Namespace) -> int:
    require_int("--max-tokens", args.max_tokens, 1)
    from minibatcher.bench.demo import run_demo

    run_demo(args.model, args.max_tokens, args.out)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Point d'entrée. Rend 0 (`check` : 1 s'il reste à faire), 2 pour une erreur expliquée, 130 après Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except MinibatcherError as problem:
        print(f"minibatcher : {problem}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as problem:
        extras = {"matplotlib": "notebooks", "ipywidgets": "notebooks", "openai": "notebooks", "joblib": "simulation"}
        extra = extras.get(problem.name, "model")
        print(
            f"minibatcher : il manque le paquet {problem.name!r}. Installez-le avec : pip install 'minibatcher[{extra}]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("\nminibatcher : interrompu.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except OSError as problem:
        print(
            f"minibatcher : impossible de lire ou d'écrire {problem.filename or 'un fichier'} ({problem.strerror}).",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
