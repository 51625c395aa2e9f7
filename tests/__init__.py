"""Tests of Stageline."""
