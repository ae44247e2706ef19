"""Models of typed graphs: rows of several types, learned rows, layers of relations."""
