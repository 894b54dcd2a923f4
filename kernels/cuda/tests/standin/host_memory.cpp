#include "host_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "report.hpp"

namespace standin {

namespace {

std::map<uintptr_t, size_t>& page_locked() {
    static auto& all = *new std::map<uintptr_t, size_t>;
    return all;
}

uint64_t checksum_of(const unsigned char* bytes, size_t count) {
    uint64_t sum = count;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t word;
        std::memcpy(&word, bytes + i, 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    for (; i < count; ++i) sum = (sum ^ bytes[i]) * 0x9e3779b97f4a7c15u;
    return sum;
}

}  // namespace

void* allocate_host(size_t bytes) {
    void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (memory == nullptr) return nullptr;
    // Not zero: nobody may count on it.
    std::memset(memory, 0xcd, bytes);
    page_locked()[reinterpret_cast<uintptr_t>(memory)] = bytes;
    return memory;
}

bool release_host(void* memory) {
    const auto found = page_locked().find(reinterpret_cast<uintptr_t>(memory));
    if (found == page_locked().end()) return false;
    if (is_host_memory_pending(static_cast<unsigned char*>(memory), found->second, false)) {
        problem("host memory is freed that a queued copy will use");
        finish_all();
    }
    page_locked().erase(found);
    std::free(memory);
    return true;
}

bool is_page_locked(const void* memory, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const auto after = page_locked().upper_bound(address);
    if (after == page_locked().begin()) return false;
    const auto& [base, size] = *std::prev(after);
    return address - base <= size && bytes <= size - (address - base);
}

void begin_upload(Upload& upload) {
    if (!is_page_locked(upload.from, upload.bytes)) {
        upload.copy.assign(upload.from, upload.from + upload.bytes);
        return;
    }
    // What a queued download will write may change.
    upload.is_checked = !is_host_memory_pending(upload.from, upload.bytes, true);
    if (upload.is_checked) upload.checksum = checksum_of(upload.from, upload.bytes);
}

const unsigned char* finish_upload(const Upload& upload) {
    if (!upload.copy.empty()) return upload.copy.data();
    if (upload.is_checked && checksum_of(upload.from, upload.bytes) != upload.checksum) {
        problem(format("host memory at %p was changed before the copy of %zu bytes from it to the device had run",
                       static_cast<const void*>(upload.from), upload.bytes));
    }
    return upload.from;
}

void begin_download(Download& download) {
    if (!is_page_locked(download.to, download.bytes)) return;
    if (is_host_memory_pending(download.to, download.bytes, false)) return;
    std::memset(download.to, unfinished, download.bytes);
    download.is_marked = true;
}

void finish_download(const Download& download) {
    if (!download.is_marked) return;
    const bool is_intact = std::all_of(download.to, download.to + download.bytes, [](unsigned char b) { return b == unfinished; });
    if (is_intact) return;
    problem(format("host memory at %p was written before the copy of %zu bytes to it from the device had run",
                   static_cast<void*>(download.to), download.bytes));
}

}  // namespace standin
