"""A fitted committee in a file, and back."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.core.learning import Learner, LearnerState
from pinfactory.persistence import save_model

from ._blueprint import Blueprint, Replica
from ._information import CommitteeInformation


class Files(Blueprint):
    """What of a committee goes into a file: settings, plain attributes, scales, trained state."""

    state_: LearnerState
    information_: CommitteeInformation
    _plain: tuple[str, ...]
    _scalers: tuple[str, ...]

    def save(self, path: Any) -> None:
        """Write the fitted committee to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self)
        save_model(self, path)

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        plain = {name: getattr(self, name) for name in self._plain if hasattr(self, name)}
        params = self.get_params(deep=False)
        for name in ("beta_selector", "beta_expert"):
            params[name] = check.stored(params[name])
        meta = {"params": params, "plain": plain}
        meta["information"] = dataclasses.asdict(self.information_)
        meta["scalers"] = {
            name: (getattr(self, name).mean_, getattr(self, name).scale_) for name in self._scalers
        }
        return meta, self.state_

    @classmethod
    def _from_file(cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]) -> "Files":
        params = meta["params"]
        for name in ("beta_selector", "beta_expert"):
            params[name] = check.restored(params[name])
        model = cls(**params)
        for name, value in meta["plain"].items():
            setattr(model, name, value)
        for name, (mean, scale) in meta["scalers"].items():
            scaler = StandardScaler()
            scaler.mean_, scaler.scale_ = mean, scale
            setattr(model, name, scaler)
        model.information_ = CommitteeInformation(**meta["information"])
        wanted = Replica(0, model.n_experts_, *model._resources())
        learner = Learner(model._utility())
        model.state_ = load(model._started(learner, [wanted], model.n_features_in_)[0])
        return model
