"""Starting weights: a few heads begin near shapes that lookups need, so that these emerge within minutes on a CPU.

Every weight is trained afterwards. Layer 0 looks a fixed number of tokens back; layer 1 copies what followed an earlier
occurrence (induction) and, in a note, takes the name that a company page gave to the role; layer 2 looks up sentences whose
subject is the asked name. Which fact is asked for, and all the rest, is left to training.
"""
import torch

BACK = (1, 2, 3, 4, 5, 6)  # tokens that the heads of layer 0 look back


def _rows(count, width, generator):
    """`count` orthonormal rows over `width` dimensions, none of them touching dimension 0."""
    q, _ = torch.linalg.qr(torch.randn(width - 1, count, generator=generator))
    return torch.cat((torch.zeros(count, 1), q.T), 1)


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
        slow = torch.ones(key.shape[0], 1)
        slow[:5], slow[len(slow) // 2:len(slow) // 2 + 5] = 0, 0
        self.k[kv].mul_(0.2).add_(strength * slow * key)
        self.v[kv].copy_(value)
        for head, (ask, write) in enumerate(zip(asks, writes), kv * self.group):
            self.q[head].mul_(0.2).add_(strength * slow * ask)
            self.o[:, head].copy_(write.T)


@torch.no_grad()
def shape_heads(model, seed):
    generator = torch.Generator().manual_seed(seed)
    c = model.config
    width, dim = c["hidden_size"], c["head_dim"]
    rows = lambda: _rows(dim, width, generator)
    turn = c["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)[:6]
    model.embed.weight[:, 0] = 1.0  # a constant that the position heads read
    first, second, third = (Heads(layer) for layer in model.layers[:3])
    code, back = rows(), {}
    for head, distance in enumerate(BACK):
        kv, back[distance] = head // first.group, rows()
        first.q[head].mul_(0.1)
        first.q[head][:6, 0] = 0.8 * torch.cos(distance * turn)
        first.q[head][dim // 2:dim // 2 + 6, 0] = -0.8 * torch.sin(distance * turn)
        first.k[kv].mul_(0.1)
        first.k[kv][:6, 0] = 0.8
        first.v[kv].copy_(code)
        first.o[:, head].copy_(0.25 * back[distance].T)
    copy = rows()
    second.match(0, back[1], copy, [code] * 3, [0.3 * copy] * 3, 1.5)
    second.match(1, back[4], code, [back[3]] * 3, [0.3 * back[2]] + [0.05 * rows()] * 2, 2.0)
    person, company = rows(), rows()
    third.match(0, back[2], person, [back[5]] * 3, [0.3 * person] * 3, 1.5)
    third.match(1, back[3], company, [back[6], back[6], back[5]], [0.3 * company] * 3, 1.5)
