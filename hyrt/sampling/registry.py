"""Registry of samplers: the entry-point group `hyrt.samplers`, by kind."""

from hyrt.machine.entry_points import EntryPointGroup

SAMPLERS = EntryPointGroup("hyrt.samplers", "sampler.kind")
