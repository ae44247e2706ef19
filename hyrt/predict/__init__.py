"""Prediction of runs on this or another machine, and automatic choice of devices and feature formats."""
