"""Slurm: one stage for each task of an allocation, started by `srun`. See docs/slurm.md."""
