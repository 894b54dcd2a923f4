// Defects of kernels.

#include "host_device.hpp"
#include "selftest.hpp"

using standin::Buffer;
using standin::launch;

namespace {

std::vector<float> counted(unsigned count) {
    std::vector<float> values(count);
    for (unsigned i = 0; i < count; ++i) values[i] = static_cast<float>(i);
    return values;
}

void test_right_kernels() {
    finds_nothing("add_one", 50, [] {
        Buffer<float> values(counted(1000));
        launch("add_one", 4, 256, 0, values.get(), 1000u);
        expect(values.read()[999] == 1000.0f, "add_one: a value");
    });
    finds_nothing("sum_blocks", 50, [] {
        Buffer<float> values(counted(1000)), sums(8);
        launch("sum_blocks", 8, 128, 0, sums.get(), values.get(), 1000u);
        const std::vector<float> got = sums.read();
        expect(got[0] == 8128.0f && got[7] == 98540.0f, "sum_blocks: values");
    });
    finds_nothing("reverse_values", 50, [] {
        Buffer<float> values(counted(64));
        launch("reverse_values", 1, 64, 64 * 4, values.get());
        expect(values.read() == counted(64), "reverse_values: values");
    });
    finds_nothing("rotate_lanes", 50, [] {
        Buffer<float> values(counted(64));
        launch("rotate_lanes", 1, 64, 0, values.get());
        expect(values.read()[31] == 0.0f && values.read()[32] == 33.0f, "rotate_lanes: values");
    });
    finds_nothing("fill_halves", 50, [] {
        Buffer<half_t> values(333);
        launch("fill_halves", 3, 64, 0, values.get(), 333u);
        expect(to_float(values.read()[332]) == 332.0f, "fill_halves: a value");
    });
    finds_nothing("fill_bytes", 50, [] {
        Buffer<unsigned char> values(333);
        launch("fill_bytes", 3, 111, 0, values.get(), 333u);
        expect(values.read()[332] == 332 % 256, "fill_bytes: a value");
    });
    finds_nothing("count_up", 50, [] {
        Buffer<unsigned> counter(std::vector<unsigned>{0});
        launch("count_up", 3, 50, 0, counter.get());
        expect(counter.read()[0] == 150, "count_up: the number");
    });
}

void test_bounds() {
    Buffer<float> out(counted(64)), in(counted(64));
    const float* source = in.get();
    finds("read past the end", "0 bytes past the end of allocation", 3, [&] {
        launch("read_past_end", 1, 1, 0, out.get(), source, 64u);
    });
    finds("read before the start", "outside what is allocated", 3, [&] {
        launch("read_before_start", 1, 1, 0, out.get(), source);
    });
    finds("read of null", "a null pointer", 3, [&] {
        launch("read_null", 1, 1, 0, out.get(), static_cast<const float*>(nullptr));
    });
    finds("shared past the end", "byte 64 of shared shared_past_end::tile (64 bytes)", 3, [&] {
        launch("shared_past_end", 1, 16, 0, out.get(), 16u);
    });
    finds("dynamic shared past the end", "byte 64 of 64 bytes of dynamic shared memory", 3, [&] {
        launch("dynamic_past_end", 1, 1, 64, out.get(), 16u);
    });
    finds("local array past the end", "index 4 outside its array", 3, [&] {
        launch("local_past_end", 1, 1, 0, out.get(), 4u);
    });
    finds("misaligned vector", "is not aligned", 3, [&] {
        launch("misaligned", 1, 1, 0, reinterpret_cast<float4*>(out.get()), source);
    });
    finds("use after free", "freed allocation", 3, [&] {
        float* pointer;
        {
            Buffer<float> gone(counted(64));
            pointer = gone.get();
        }
        launch("add_one", 1, 64, 0, pointer, 64u);
    });
}

void test_unwritten() {
    finds("read before written", "memory never written", 3, [] {
        Buffer<float> values(64);
        launch("add_one", 1, 64, 0, values.get(), 64u);
    });
    finds("shared read before written", "memory never written", 3, [] {
        Buffer<float> out(32);
        launch("shared_never_written", 2, 32, 0, out.get());
    });
    finds("copy of the unwritten", "memory never written", 3, [] { Buffer<float>(64).read(); });
    finds("copy not waited for", "memory never written", 10, [] {
        Buffer<float> out(32), in(counted(128));
        launch("copy_without_wait", 1, 32, 0, out.get(), static_cast<const float*>(in.get()));
    });
}

void test_races() {
    // The race may show as a read of what the other thread has not written yet.
    finds("no barrier: read too early", " in kernel sum_blocks_no_barrier", 50, [] {
        Buffer<float> values(counted(128)), sums(1);
        launch("sum_blocks_no_barrier", 1, 128, 0, sums.get(), static_cast<const float*>(values.get()), 128u);
    });
    finds("no barrier: written too early", "race: ", 50, [] {
        Buffer<float> values(counted(64));
        launch("reverse_values_no_barrier", 1, 64, 64 * 4, values.get());
    });
    finds("no warp barrier", " in kernel rotate_lanes_no_barrier", 50, [] {
        Buffer<float> values(counted(64));
        launch("rotate_lanes_no_barrier", 1, 64, 0, values.get());
    });
    finds("blocks write the same", "another block wrote", 50, [] {
        Buffer<float> out(1);
        launch("blocks_write_same", 2, 1, 0, out.get());
    });
    finds("block reads what one writes", "another block", 50, [] {
        Buffer<float> values(counted(128));
        launch("shift_in_place", 128, 1, 0, values.get(), 128u);
    });
    finds("counter without atomics", "race: ", 50, [] {
        Buffer<unsigned> counter(std::vector<unsigned>{0});
        launch("count_up_plain", 1, 2, 0, counter.get());
    });
}

void test_relaxed() {
    standin_configure("mode", "relaxed");
    Buffer<float> out(counted(64));
    finds_nothing("races when relaxed", 1, [&] { launch("blocks_write_same", 2, 1, 0, out.get()); });
    finds("bounds when relaxed", "past the end", 1, [&] {
        launch("read_past_end", 1, 1, 0, out.get(), static_cast<const float*>(out.get()), 64u);
    });
    standin_configure("mode", "strict");
}

void test_collectives() {
    Buffer<float> out(counted(64));
    finds("shuffle without its caller", "has not the lane that calls", 10, [&] {
        launch("shuffle_without_caller", 1, 32, 0, out.get());
    });
    finds("shuffle in half a warp", "ended", 10, [&] { launch("shuffle_in_half_warp", 1, 32, 0, out.get()); });
    finds("shuffle from outside the mask", "reads lane 20", 10, [&] { launch("shuffle_from_outside", 1, 32, 0, out.get()); });
    finds("barrier in a branch", "ended, but", 10, [&] { launch("barrier_in_branch", 1, 64, 0, out.get()); });
    finds("two barriers", "wait at different barriers", 10, [&] { launch("two_barriers", 1, 64, 0, out.get()); });
    finds("two kinds of barrier", "cannot go on", 10, [&] { launch("barrier_and_warp_barrier", 1, 32, 0, out.get()); });
    finds("product in half a warp", "mma_m16n8k16", 10, [&] { launch("mma_in_half_warp", 1, 32, 0, out.get()); });
}

}  // namespace

void test_kernels() {
    test_right_kernels();
    test_bounds();
    test_unwritten();
    test_races();
    test_relaxed();
    test_collectives();
}
