"""The priors of skill modules by name. A new prior is a file here and an entry in `PRIORS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from mocap_data.errors import unknown
from npmp.core.settings import from_mapping
from npmp.skills.prior import AR1, Prior
from npmp.skills.priors.control_vae import ControlVAEPrior
from npmp.skills.priors.fsq import FSQPrior

PRIORS: dict[str, type[Prior]] = {kind.name: kind for kind in (AR1, ControlVAEPrior, FSQPrior)}


def settings_of(name: str, settings: Mapping[str, Any]) -> Any:
    """Parse the settings of a prior. Raises InputError for an unknown prior or setting."""
    if name not in PRIORS:
        raise unknown("prior", name, PRIORS)
    return from_mapping(PRIORS[name].config_type, settings, at=f"prior '{name}'")


def make(name: str, settings: Mapping[str, Any], latent_dim: int, home: Tensor) -> Prior:
    """Make an untrained prior.

    Args:
      settings: of its `config_type`. home: joint angles of the home pose (nu,) [rad].

    Raises:
      InputError: for an unknown prior or setting.
    """
    return PRIORS[name].from_config(latent_dim, settings_of(name, settings), home)


def code_of(name: str, settings: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """The map from latents to the decoder's input, `Prior.code`; arguments as `make`."""
    return partial(PRIORS[name].code, config=settings_of(name, settings))
