"""What computes behind the ops: the stub and transformers."""
