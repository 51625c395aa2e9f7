"""Find, select and fetch the tensors a stage needs."""
