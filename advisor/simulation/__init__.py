"""The probe: the real model, autograd and optimizer on the meta device, in a child process; the parent never loads torch."""

from advisor.simulation.probing import Probed, probe
from advisor.simulation.request import CannotProbe

__all__ = ["CannotProbe", "Probed", "probe"]
