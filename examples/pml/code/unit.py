class Unit:
    """Something that stands on the map and can be hurt."""

    def __init__(self, name, health, strength):
        self.name = name
        self.health = health
        self.strength = strength

    def is_alive(self):
        return self.health > 0

    def hit(self, other):
        other.health -= self.strength
