class Map:
    """A grid of fields; a field has a unit or None."""

    def __init__(self, width, height):
        self.fields = [[None] * width for _ in range(height)]

    def place(self, unit, x, y):
        if self.fields[y][x] is not None:
            raise ValueError("the field is taken")
        self.fields[y][x] = unit

    def units(self):
        return [unit for row in self.fields for unit in row if unit]
