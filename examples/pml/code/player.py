class Player:
    """Owns units and decides what they do."""

    def __init__(self, name):
        self.name = name
        self.units = []

    def is_beaten(self):
        return not any(unit.is_alive() for unit in self.units)
