"""Dans la roue, les exercices à compléter, copiés de `exercises/`. Dans le dépôt, ce dossier reste vide."""
