"""A free body of the scene, e.g. a ball."""

from __future__ import annotations

import torch
from torch import Tensor

from npmp.sim import Simulator


class FreeBody:
    """A sphere with a free joint in each of n simulations, of which radius and mass may differ.
    Joint, body and geom have the same name."""

    def __init__(self, sim: Simulator, name: str):
        self._sim = sim
        model = sim.model
        joint = model.joint(name)
        self._q = int(joint.qposadr[0])
        self._v = int(joint.dofadr[0])
        self._body = model.body(name).id
        self._geom = model.geom(name).id
        self._rest = torch.tensor(model.qpos0, device=sim.device)
        self._fields = sim.expand(["geom_size", "body_mass", "body_inertia"])
        self._wrench = sim.wrench(self._body)

    @property
    def pose(self) -> Tensor:
        """Position [m] and quaternion in the world frame, (n, 7) float64."""
        return self._sim.qpos[:, self._q : self._q + 7].double()

    @property
    def position(self) -> Tensor:
        """Positions in the world, (n, 3) [m]."""
        return self._sim.qpos[:, self._q : self._q + 3].float()

    @property
    def velocity(self) -> Tensor:
        """Velocities in the world, (n, 3) [m/s]."""
        return self._sim.qvel[:, self._v : self._v + 3].float()

    def apply(self, force: Tensor) -> None:
        """Apply forces (n, 3) [N] in the world frame until the next call."""
        self._wrench[:, :3] = force.to(self._wrench)

    def make(self, ids: Tensor, radius: Tensor, mass: Tensor) -> None:
        """Set radius (k,) [m] and mass (k,) [kg] of the solid spheres in simulations ids (k,)."""
        fields = self._fields
        rows = ids.to(fields["geom_size"].device)
        radius = radius.to(fields["geom_size"])
        mass = mass.to(fields["geom_size"])
        fields["geom_size"][rows, self._geom, 0] = radius
        fields["body_mass"][rows, self._body] = mass
        fields["body_inertia"][rows, self._body] = (0.4 * mass * radius.square()).unsqueeze(-1)
        self._sim.set_const(ids)

    def scenes(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Scenes at rest with the body at position (k, 3) [m]: qpos (k, nq), qvel (k, nv) of
        `Start.others`."""
        qpos = self._rest.repeat(len(position), 1)
        qpos[:, self._q : self._q + 3] = position.to(qpos)
        return qpos, qpos.new_zeros(len(position), self._sim.model.nv)
