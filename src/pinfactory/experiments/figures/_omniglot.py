"""What figures of Omniglot need."""

from pinfactory.meta.tasks.omniglot_archives import FOLDER_VARIABLE, at_hand


def lacks() -> str:
    """Return what is missing here, unless the archives are at hand."""
    if at_hand():
        return ""
    return (
        f"needs the Omniglot archives: name their folder in {FOLDER_VARIABLE}, or ask for this "
        "experiment by name where there is a network"
    )
