"""What can be wrong with a model file, one name each."""


class ModelFileError(ValueError):
    """Say that a file cannot be loaded; the base of every error about a file's content."""


class NotAModelFileError(ModelFileError):
    """Say that a file is something else than a pinfactory file."""


class DamagedFileError(ModelFileError):
    """Say that a pinfactory file is incomplete or contradicts itself."""


class UnsupportedVersionError(ModelFileError):
    """Say that a file's format version is not one this library reads."""


class UnknownKindError(ModelFileError):
    """Say that a file holds another kind of model than was asked for or is registered."""


class MismatchError(ModelFileError):
    """Say that a file's arrays are not those the skeleton asks for."""


class MissingFunctionError(ModelFileError):
    """Say that a model needs a function, such as a factory of experts, that a file cannot hold."""


class NotStorableError(TypeError):
    """Say that a value, such as a user's function, cannot be put into a model file."""
