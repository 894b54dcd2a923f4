"""Starting weights: a few heads begin near shapes that lookups need, so that these emerge within minutes on a CPU.

Every weight is trained afterwards. Layer 0 looks a fixed number of tokens back, and writes what it finds into one slot a
distance; slots are mutually orthogonal parts of the residual stream. Layer 1 copies what followed an earlier occurrence
(induction) and, in a note, takes the surname that a company page gave to the role. Layer 2 looks up sentences whose subject
is the asked name. Which fact is asked for, and all the rest, is left to training.
"""
import torch

BACK = (1, 2, 3, 4, 5, 6)  # tokens that the heads of layer 0 look back
SLOW = 11                  # pairs of a head's dimensions, the slowest, that compare content at any distance


class Slots:
    """Mutually orthogonal parts of the residual stream, none of them touching dimension 0."""

    def __init__(self, width, dim, seed):
        self.basis = torch.linalg.qr(torch.randn(width - 1, width - 1, generator=torch.Generator().manual_seed(seed)))[0]
        self.used, self.dim = 0, dim
        self.slow = [i for i in range(dim) if i % (dim // 2) >= dim // 2 - SLOW]

    def take(self):
        """[dim, width]: a slot's rows at the slow dimensions of a head, zero at the fast ones."""
        rows = torch.zeros(self.dim, len(self.basis) + 1)
        rows[self.slow, 1:] = self.basis[self.used:self.used + len(self.slow)]
        self.used += len(self.slow)
        return rows


class Heads:
    """Views of one layer's projections by head."""

    def __init__(self, layer):
        (heads, kv, _), dim = layer.split, layer.dim
        blocks = layer.qkv.weight.view(heads + 2 * kv, dim, -1)
        self.q, self.k, self.v = blocks[:heads], blocks[heads:heads + kv], blocks[heads + kv:]
        self.o = layer.out.weight.view(-1, heads, dim)
        self.group = heads // kv

    def match(self, kv, key, value, asks, writes, strength):
        """The heads of group `kv` compare `asks` with `key`, in dimensions that rotary hardly turns, and copy `value`."""
        self.k[kv].mul_(0.1).add_(strength * key)
        self.v[kv].copy_(value)
        for head, (ask, write) in enumerate(zip(asks, writes), kv * self.group):
            self.q[head].mul_(0.1).add_(strength * ask)
            self.o[:, head].copy_(write.T)

    def prefer(self, kv, direction, strength):
        """The heads of group `kv` look rather at tokens whose residual has this direction."""
        at = self.k.shape[1] // 2 - 1  # the slowest pair: hardly turned at any distance
        self.k[kv][at] += strength * direction
        for head in range(kv * self.group, (kv + 1) * self.group):
            self.q[head][at, 0] += strength  # dimension 0 is constant


@torch.no_grad()
def shape_heads(model, seed, ids):
    """`ids`: the tokens " is" and " of"."""
    c = model.config
    dim = c["head_dim"]
    slots = Slots(c["hidden_size"], dim, seed)
    turn = c["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)[:6]
    model.embed.weight[:, 0] = 1.0  # a constant that heads read
    first, second, third = (Heads(layer) for layer in model.layers[:3])
    code, back = slots.take(), {}
    for head, distance in enumerate(BACK):
        kv, back[distance] = head // first.group, slots.take()
        first.q[head].mul_(0.1)
        first.q[head][:6, 0] = 0.8 * torch.cos(distance * turn)
        first.q[head][dim // 2:dim // 2 + 6, 0] = -0.8 * torch.sin(distance * turn)
        first.k[kv].mul_(0.1)
        first.k[kv][:6, 0] = 0.8
        first.v[kv].copy_(code)
        first.o[:, head].copy_(0.25 * back[distance].T)
    copy = slots.take()
    second.match(0, back[1], copy + code, [code] * 3, [0.3 * copy] * 3, 1.5)
    # "the founder of Halden Works is Mira Vosman" and "the founder of Halden Works keeps 7": at "7", three tokens behind "Halden",
    # what is four behind it, two behind "is" and five behind "of"; into the slot where a person's own page has the surname.
    second.match(1, back[4], code, [back[3]] * 3, [0.3 * back[2]] * 3, 1.5)
    for distance, word in ((2, ids[" is"]), (5, ids[" of"])):
        said = back[distance].T @ (code @ model.embed.weight[word])
        second.prefer(1, said / said.norm(), 1.5)
    third.match(0, back[2], code, [back[4], back[4], code], [0.3 * copy] * 3, 1.5)
    third.match(1, back[3], code, [back[5]] * 3, [0.3 * copy] * 3, 1.5)


@torch.no_grad()
def grow(model, smaller):
    """Makes `model`, which has more layers, compute what `smaller` does: the new layers stand behind the first and add nothing at first."""
    state, new = dict(smaller.state_dict()), len(model.layers) - len(smaller.layers)
    own = model.state_dict()
    for name, value in state.items():
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            name = f"layers.{int(layer) + (new if int(layer) else 0)}.{rest}"
        own[name] = value
    model.load_state_dict(own)
