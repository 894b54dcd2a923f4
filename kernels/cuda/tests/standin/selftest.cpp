// Proves that the stand-in finds each kind of defect, and that it finds nothing in what is right.

#include "selftest.hpp"

int main() {
    // What is found goes to stderr, too, which would hide what the test itself says.
    if (std::freopen("/dev/null", "w", stderr) == nullptr) return 1;
    test_values();
    test_kernels();
    test_streams();
    test_driver();
    test_peers();
    std::printf(failures == 0 ? "all as it should be\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
