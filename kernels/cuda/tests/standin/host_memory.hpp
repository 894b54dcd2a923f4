// Host memory of copies.
#pragma once

#include "stream.hpp"

namespace standin {

/// What stands where a copy has not written yet, or had nothing to write.
constexpr unsigned char unfinished = 0xa5;

/// Takes a copy of pageable memory; of page-locked memory a checksum, to find out whether somebody changes it before the copy runs.
void begin_upload(Upload& upload);
/// The bytes to copy. Reports if they changed.
const unsigned char* finish_upload(const Upload& upload);
/// Marks the target as not yet written.
void begin_download(Download& download);
/// Reports if somebody wrote to the target before the copy.
void finish_download(const Download& download);
bool is_page_locked(const void* memory, size_t bytes);

}  // namespace standin
