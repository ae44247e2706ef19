"""Use of a trained model on other data: the scaling, names and widths that the run fitted, and their use."""
