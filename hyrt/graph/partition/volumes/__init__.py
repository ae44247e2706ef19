"""How many rows parts send each other, and parts that are moved to send fewer."""
