"""Labels of vertices: their kinds, their checks, and how other libraries keep them."""
