class Game:
    """Players take turns on one map until one is left."""

    def __init__(self, board, players):
        self.board = board
        self.players = players
        self.turn = 0

    def winner(self):
        left = [player for player in self.players if not player.is_beaten()]
        return left[0] if len(left) == 1 else None

    def next_turn(self):
        self.turn = (self.turn + 1) % len(self.players)
