"""Model files and checkpoints: arrays and plain values, never code.

A model file is a zip of one `safetensors` member, whose arrays are keyed by their path in the
tree, and a JSON manifest with a format version (`docs/file_format.md`). The file holds values
only; structure and behaviour come from the skeleton or the registered class that the reader
supplies, so that loading a file, even a hostile one, runs no code from it.

`save_tree` and `load_tree` store any pytree, such as a training state. `save_model` and `load`
store the models whose class was given a kind with `register`.
"""

from ._atomic import atomic_write
from ._container import read_manifest
from ._described import described, dotted_name, fingerprint
from ._errors import (
    DamagedFileError,
    MismatchError,
    MissingFunctionError,
    ModelFileError,
    NotAModelFileError,
    NotStorableError,
    UnknownKindError,
    UnsupportedVersionError,
)
from ._json import from_json, to_json
from ._manifest import ArraySpec, Manifest
from ._registry import (
    Storable,
    check_scale,
    load,
    register,
    save_model,
    set_attributes,
)
from ._tree import load_tree, save_tree

__all__ = [
    "ArraySpec",
    "DamagedFileError",
    "Manifest",
    "MismatchError",
    "MissingFunctionError",
    "ModelFileError",
    "NotAModelFileError",
    "NotStorableError",
    "Storable",
    "UnknownKindError",
    "UnsupportedVersionError",
    "atomic_write",
    "check_scale",
    "described",
    "dotted_name",
    "fingerprint",
    "from_json",
    "load",
    "load_tree",
    "read_manifest",
    "register",
    "save_model",
    "save_tree",
    "set_attributes",
    "to_json",
]
