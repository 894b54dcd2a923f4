// Seeded random numbers: the same seed gives the same order of everything.
#pragma once

#include <cstdint>
#include <numeric>

namespace standin {

/// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
public:
    explicit Random(uint64_t seed = 0) : state(seed) {}

    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }

    /// A number below `bound`, which is neither 0 nor above 2^32.
    uint64_t below(uint64_t bound) { return (next() >> 32) * bound >> 32; }

private:
    uint64_t state;
};

/// An order of 0..count, below 2^32, that needs no table: i -> (i * step + start) mod count, step and count without a common divisor.
class Order {
public:
    Order(uint64_t count_, Random& random) : count(count_), start(random.below(count_)), step(1) {
        if (count < 3) return;
        do step = 1 + random.below(count - 1);
        while (std::gcd(step, count) != 1);
    }
    Order() = default;

    uint64_t operator()(uint64_t i) const { return (i * step + start) % count; }

private:
    uint64_t count = 1, start = 0, step = 1;
};

}  // namespace standin
