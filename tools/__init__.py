"""Tools that build, check and measure this repository; no part of the distribution."""
