# Deux commandes suffisent : `make demo` et `make test`. Les autres sont là pour la suite.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installe

.DEFAULT_GOAL := help
.PHONY: help install demo test lint lab clean

help:
	@echo "make demo     installe tout, puis sert un vrai modèle : transformers d'un côté, minibatcher de l'autre"
	@echo "make test     installe tout, puis passe les tests"
	@echo "make install  l'installation seule (une fois ; refaite quand requirements.lock ou pyproject.toml change)"
	@echo "make lab      ouvre JupyterLab"
	@echo "make lint     vérifie la forme du code (ruff)"
	@echo "make clean    efface l'environnement virtuel et les résultats"

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
	$(BIN)/jupyter lab

clean:
	rm -rf $(VENV) resultats build *.egg-info
