# Deux commandes suffisent : `make demo` et `make test`. Les autres sont là pour la suite.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installe

.DEFAULT_GOAL := help
.PHONY: help install demo test lint lab notebooks colab test-colab clean

help:
	@echo "make demo        installe tout, puis sert un vrai modèle : transformers d'un côté, minibatcher de l'autre"
	@echo "make test        installe tout, puis passe les tests"
	@echo "make install     l'installation seule (une fois ; refaite quand requirements.lock ou pyproject.toml change)"
	@echo "make lab         ouvre JupyterLab sur le premier carnet"
	@echo "make lint        vérifie la forme du code (ruff)"
	@echo "make notebooks   refait les exercices depuis solutions/, puis les carnets depuis notebooks/sources/"
	@echo "make colab       fabrique dist/minibatcher-colab.zip : la roue, les carnets et les exercices, pour Colab"
	@echo "make test-colab  essaie carnets et widgets avec les versions d'IPython et d'ipywidgets de Colab (dans .venv-colab)"
	@echo "make clean       efface l'environnement virtuel et les résultats"

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "Il faut Python 3.11, 3.12 ou 3.13. Donnez-en un : make install PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps -e .
	@touch $@

demo: install
	$(BIN)/minibatcher demo

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lab: install
	$(BIN)/jupyter lab notebooks/00_accueil.ipynb

notebooks: install
	$(BIN)/python -m minibatcher.course.exercises
	$(BIN)/python -m minibatcher.course.build

colab: notebooks
	$(BIN)/python -m minibatcher.course.archive

# Un second environnement, aux versions de Colab (image d'août 2026) : son noyau exécute les carnets, et les widgets y sont testés. Sans
# torch, d'où --noconftest : tests/conftest.py en a besoin.
COLAB_VENV := .venv-colab
COLAB_PINS := ipykernel==6.17.1 ipython==7.34.0 ipywidgets==7.7.1

$(COLAB_VENV)/.installe: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(COLAB_VENV)
	$(COLAB_VENV)/bin/python -m pip install --disable-pip-version-check --quiet $(COLAB_PINS) numpy==2.1.3 matplotlib==3.10.0 \
		pytest nbclient joblib
	$(COLAB_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -e .
	@touch $@

test-colab: install $(COLAB_VENV)/.installe
	MINIBATCHER_NOTEBOOK_PYTHON=$(abspath $(COLAB_VENV))/bin/python $(BIN)/python -m pytest tests/test_notebooks.py -k "runs"
	$(COLAB_VENV)/bin/python -m pytest --noconftest tests/test_widgets.py tests/test_viz.py

clean:
	rm -rf $(VENV) $(COLAB_VENV) resultats build dist *.egg-info
