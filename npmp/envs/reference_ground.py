"""The grounds of reference motions as a terrain: motions with the same ground share a field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.ground_profile import CELL_M, GroundProfile
from mocap_data.motion import ReferenceMotion
from npmp.envs.ground import RoughGround
from npmp.envs.state import RobotState
from npmp.sim.terrain import PERIOD_M, Terrain, TerrainConfig

_FLAT = GroundProfile(np.zeros(round(PERIOD_M / CELL_M)))


class ReferenceGround(RoughGround):
    """Fields on which robots track motions; a motion begins in its field's period at the middle of
    its width.

    Imagined heights are in the world, as the reference's are, not above a patch.
    """

    def __init__(self, motions: Sequence[ReferenceMotion]):
        """Raises InputError for a ground of another period than the terrain's."""
        profiles: dict[bytes, GroundProfile] = {}
        keys = []
        for motion in motions:
            profile = motion.ground or _FLAT
            if len(profile.heights) != len(_FLAT.heights):
                raise InputError(
                    f"motion {motion.name!r}: its ground repeats after {profile.period_m:g} m, "
                    f"expected {PERIOD_M:g} m"
                )
            keys.append(profile.heights.tobytes())
            profiles.setdefault(keys[-1], profile)
        order = {key: i for i, key in enumerate(profiles)}
        fields = [order[key] for key in keys]
        heights = [profile.heights for profile in profiles.values()]
        # the kind is for figures; the heights are those of the motions
        config = TerrainConfig("stairs", fields=len(profiles))
        super().__init__(Terrain(config, heights))
        # (clips, 3) of the motions' frames in the world [m]; the highest point of a field is at 0
        self.origins = np.zeros((len(fields), 3))
        self.origins[:, :2] = self.terrain.corner[fields].double().numpy() + [0.0, PERIOD_M / 2.0]
        self.origins[:, 2] = [-heights[field].max() for field in fields]
        self._field_of_clip = torch.tensor(fields)

    def bind(self, env: Any) -> None:
        super().bind(env)
        self._field_of_clip = self._field_of_clip.to(env.device)

    def move_to_field(self, ids: Tensor, generator: torch.Generator) -> None:
        """Robots ids (k,) stay where they start, on their motions, in the fields' periods."""
        self._to_period(ids, torch.ones_like(ids, dtype=torch.bool))

    def put_down(self, ids: Tensor, mask: Tensor) -> None:
        """Put those robots ids (k,) of a mask (k,) that were moved to a motion on its ground, the
        lowest foot on it."""
        self._to_period(ids, mask)
        missing = self._missing(RobotState.unpack(self.env.state.pack()[ids]))
        lift = torch.where(mask, missing, 0.0).unsqueeze(-1)
        self.env.robots.shift(ids, torch.nn.functional.pad(lift, (2, 0)))

    def _to_period(self, ids: Tensor, mask: Tensor) -> None:
        """Move those robots ids (k,) of a mask (k,) into the period of their motion's field."""
        field = self._field_of_clip[self.env.task.tracking.clip[ids]]
        field = torch.where(mask, field, self.field[ids])
        back = self.terrain.way_back(self.env.state.root_pos[ids, :2], field)
        back = torch.where(mask.unsqueeze(-1), back, 0.0)
        moved = torch.where(mask.unsqueeze(-1), back, self.moved[ids])
        self.env.robots.shift(ids, torch.nn.functional.pad(back, (0, 1)))
        self.field = self.field.index_copy(0, ids, field)
        self.moved = self.moved.index_copy(0, ids, moved)

    def local_patch(self, state: RobotState) -> Tensor:
        return super().patch(state)

    def patch(self, state: RobotState) -> Tensor:
        return torch.stack(
            (torch.zeros_like(state.root_pos[:, 0]), self.field.to(state.root_pos)), -1
        )
