"""Ce qui fait vivre le cours : les exercices et leurs vérifications, la construction des carnets, le diagnostic de la machine.

`%load_ext minibatcher.course` donne aux carnets la cellule `%%exercice`.
"""


def load_ipython_extension(shell) -> None:
    """Appelée par `%load_ext minibatcher.course`."""
    from minibatcher.course.magic import register

    register(shell)


def unload_ipython_extension(shell) -> None:
    """Appelée par `%unload_ext minibatcher.course`."""
    from minibatcher.course.magic import unregister

    unregister(shell)
