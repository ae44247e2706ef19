"""How long a run is going to take, before it starts, and which devices it should take."""
