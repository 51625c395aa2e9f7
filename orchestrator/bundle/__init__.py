"""The diagnostic bundle: written as the run goes, read afterwards."""
